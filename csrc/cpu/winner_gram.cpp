// The k-winner Gram: G (lower triangle) += phi^T phi and q += class sums, for phi given by its winners.
//
// The ladder: (1) a thread owns whole entries of G, so each is summed by one thread in the order of the samples: the
// same bits on any number of threads, with no atomics and no copies of G; (2) a list of the samples that won each row
// of G, so that nothing is searched. From there two ways, of which the caller chooses:
// - scatter, for few winners: those of each sample in order of column, so that what row c adds is the prefix that ends
//   where c itself stands. k^2 / 2 scattered additions a sample, and no line of G touched in vain.
// - panels, for more: a panel of some columns of phi is written out, zeros and all, and stays in L2; the part of a row
//   of G in these columns is the sum over its list of whole vectors of the panel, held in registers. k M / 2 of them a
//   sample, 16 at once, and neither an address nor a store depends on the data.
#include <algorithm>
#include <limits>
#include <vector>

#include "column_set.h"
#include "operators.h"
#include "vectors.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// The winners by row of G: those of row c are at[start[c]] .. at[start[c + 1]], samples ascending.
struct Lists {
  struct Winner {
    int32_t sample;
    float value;
  };
  std::vector<int64_t> start;
  Scratch<Winner> at;

  explicit Lists(const WinnerGram& a) : start(a.m + 1, 0), at(a.rows * a.k) {
    for (int64_t s = 0; s < a.rows * a.k; ++s) ++start[a.indices[s] + 1];
    for (int64_t c = 0; c < a.m; ++c) start[c + 1] += start[c];
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t n = 0; n < a.rows; ++n)
      for (int64_t s = n * a.k; s < (n + 1) * a.k; ++s)
        at[next[a.indices[s]]++] = {static_cast<int32_t>(n), a.winners[s]};
  }
};

void add_class_sums(const WinnerGram& a, const Lists& lists) {
  parallel_for(a.m, 256, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = lists.start[row]; i < lists.start[row + 1]; ++i)
        a.q[row * a.classes + a.labels[lists.at[i].sample]] += lists.at[i].value;
  });
}

struct Entry {
  int32_t column;
  float value;
};

// (rows, k + 1): the winners of each sample, columns ascending, and one past all columns.
void order_columns(const WinnerGram& a, int64_t begin, int64_t end, Entry* to) {
  ColumnSet won(a.m);
  for (int64_t n = begin; n < end; ++n) {
    Entry* sorted = to + n * (a.k + 1);
    won.clear();
    for (int64_t s = n * a.k; s < (n + 1) * a.k; ++s) won.add(a.indices[s]);
    won.count();
    for (int64_t s = n * a.k; s < (n + 1) * a.k; ++s)
      sorted[won.rank(a.indices[s])] = {static_cast<int32_t>(a.indices[s]), a.winners[s]};
    sorted[a.k] = {std::numeric_limits<int32_t>::max(), 0.0f};
  }
}

void scatter(const WinnerGram& a, const Lists& lists) {
  const Scratch<Entry> sorted(a.rows * (a.k + 1));
  parallel_for(a.rows, 16, [&](int64_t begin, int64_t end) { order_columns(a, begin, end, sorted.get()); });
  // Long rows first, so that the threads end together.
  parallel_for(a.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = a.m - 1 - begin; row > a.m - 1 - end; --row) {
      float* g = a.g + row * a.m;
      for (int64_t i = lists.start[row]; i < lists.start[row + 1]; ++i) {
        const auto [sample, factor] = lists.at[i];
        for (const Entry* e = sorted.get() + sample * (a.k + 1); e->column <= row; ++e)
          g[e->column] += factor * e->value;
      }
    }
  });
}

constexpr int64_t lanes = Vector<float>::lanes, vectors = 4, width = vectors * lanes;
constexpr int64_t ahead = 8;  // rows: a processor does not see by itself that G is read a row's length apart

// The columns first .. first + width of G, or as many as there are, from the diagonal down.
void add_panel(const WinnerGram& a, const Lists& lists, int64_t first, float* panel) {
  const int64_t columns = std::min(width, a.m - first);
  std::fill(panel, panel + a.rows * width, 0.0f);
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t i = lists.start[first + c]; i < lists.start[first + c + 1]; ++i)
      panel[lists.at[i].sample * width + c] = lists.at[i].value;
  for (int64_t row = first; row < a.m; ++row) {
    float* g = a.g + row * a.m + first;
    if (row + ahead < a.m)
      for (int64_t c = 0; c < width; c += 64 / sizeof(float)) __builtin_prefetch(g + ahead * a.m + c, 1);
    typename Vector<float>::type sums[vectors] = {};
    for (int64_t i = lists.start[row]; i < lists.start[row + 1]; ++i) {
      const float* from = panel + lists.at[i].sample * width;
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v) sums[v] += lists.at[i].value * vector_at(from + v * lanes);
    }
    if (columns == width) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v) vector_at(g + v * lanes) += sums[v];
    } else {
      for (int64_t c = 0; c < columns; ++c) g[c] += sums[c / lanes][c % lanes];
    }
  }
}

void add_panels(const WinnerGram& a, const Lists& lists) {
  parallel_for(parts(a.m, width), 1, [&](int64_t begin, int64_t end) {
    const Scratch<float> panel(a.rows * width);
    for (int64_t p = begin; p < end; ++p) add_panel(a, lists, p * width, panel.get());
  });
}

}  // namespace

void winner_gram(const WinnerGram& a) {
  // A panel of more samples would leave L2; scattered, more make better use of each row of G that is read.
  const int64_t block = a.scatter ? a.rows : 1024;
  for (int64_t n = 0; n < a.rows; n += block) {
    WinnerGram part = a;
    part.winners += n * a.k, part.indices += n * a.k, part.labels += n;
    part.rows = std::min(block, a.rows - n);
    const Lists lists(part);
    add_class_sums(part, lists);
    a.scatter ? scatter(part, lists) : add_panels(part, lists);
  }
}

}  // namespace FLYK_ISA
}  // namespace flyk
