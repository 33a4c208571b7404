// fly_lora: y = base + scale * sum over the k winners i of (A x)_i B[:, i].
//
// The plain form reads what a formula names: an entry of A is a product, a winner a column of B. That is what one or
// two rows of x get. More rows pay for putting both matrices in order once: the entries of A by chunks of columns, so
// that a tile of rows of x meets them in L1 (rank_scores.h), and the transpose of B cut into panels of which each row
// adds its k winners (fly_lora.h). A tile's scores are ranked while they are in L1 too, and only its winners leave it.
#include "fly_lora.h"

#include "huge_pages.h"
#include "rank_scores.h"
#include "winner_take_all.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// The winners of `count` rows from `row` on, whose y = A x is given.
template <class T>
void choose(const FlyLora& a, const Accumulator<T>* y, int64_t row, int64_t count, Accumulator<T>* winners) {
  using A = Accumulator<T>;
  const DType dtype = std::is_same_v<A, double> ? DType::f64 : DType::f32;
  winners += row * a.k;
  winner_take_all_rows({y, dtype, count, a.matrix.rows, a.k, a.bias, a.selection, winners, a.indices + row * a.k}, 0,
                       count);
  if constexpr (!std::is_same_v<T, A>)
    for (int64_t s = 0; s < count * a.k; ++s) store(static_cast<T*>(a.winners)[row * a.k + s], winners[s]);
}

// (A x)_i by the entries of row i alone.
template <class T>
Accumulator<T> score(const Frozen& m, const T* x, int64_t i) {
  const T* values = static_cast<const T*>(m.values) + i * m.nnz;
  Accumulator<T> sum = 0;
  if (m.indices) {
    const int32_t* indices = m.indices + i * m.nnz;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < m.nnz; ++s) sum += load(values[s]) * load(x[indices[s]]);
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < m.nnz; ++s) sum += load(values[s]) * load(x[s]);
  }
  return sum;
}

template <class T>
void run_few(const FlyLora& a, Accumulator<T>* winners) {
  using A = Accumulator<T>;
  const Frozen& m = a.matrix;
  Scratch<A> y(a.rows * m.rows);
  parallel_for(a.rows * m.rows, 1 + 8192 / (m.nnz + 1), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) y[s] = score(m, static_cast<const T*>(a.x) + s / m.rows * m.in, s % m.rows);
  });
  choose<T>(a, y.get(), 0, a.rows, winners);
  const T *b = static_cast<const T*>(a.b), *base = static_cast<const T*>(a.base);
  const int64_t paying = 1 + 32768 / (a.rows * a.k + 1);  // columns: to wake a thread takes as long as 32768 products
  parallel_for(a.out, std::max(paying, parts(a.out, Pool::threads())), [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < a.rows; ++n)
      for (int64_t o = begin; o < end; ++o) {
        A sum = 0;
        for (int64_t j = n * a.k; j < (n + 1) * a.k; ++j) sum += winners[j] * load(b[o * m.rows + a.indices[j]]);
        const A from = base ? load(base[n * a.out + o]) : A(0);
        store(static_cast<T*>(a.y)[n * a.out + o], from + static_cast<A>(a.scale) * sum);
      }
  });
}

// All winners, by tiles of as many vectors; and beside them the panels of B's transpose.
template <int64_t vectors, class T>
void choose_all(const FlyLora& a, const Chunks<T>& chunks, Accumulator<T>* winners, Accumulator<T>* panels) {
  using A = Accumulator<T>;
  constexpr int64_t tile = vectors * Vector<A>::lanes;
  const int64_t tiles = parts(a.rows, tile), r = a.matrix.rows;
  parallel_for(tiles + parts(a.out, width), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (t < tiles) {
        const int64_t row = t * tile, count = std::min(tile, a.rows - row);
        Scratch<A> y(count * r);
        score_tile<vectors>(a.matrix, chunks, static_cast<const T*>(a.x) + row * a.matrix.in, count, y.get());
        choose<T>(a, y.get(), row, count, winners);
      } else {
        const int64_t p = t - tiles;
        transpose_panel(static_cast<const T*>(a.b), a.out, r, p, panels + p * r * width);
      }
  });
}

template <class T>
void run_many(const FlyLora& a, Accumulator<T>* winners) {
  using A = Accumulator<T>;
  constexpr int64_t lanes = Vector<A>::lanes;
  const int64_t r = a.matrix.rows;
  if (a.y != a.base) ask_for_huge_pages(a.y, a.rows * a.out * sizeof(T));
  Chunks<T> chunks(a.matrix);
  Scratch<A> panels(parts(a.out, width) * r * width);
  parallel_for(r, 1 + 8192 / (a.matrix.nnz + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) chunks.fill(i);
  });
  const int64_t share = parts(a.rows, Pool::threads());  // of a thread: no tile need be larger
  if (share <= lanes) choose_all<1>(a, chunks, winners, panels.get());
  else if (share <= 4 * lanes) choose_all<4>(a, chunks, winners, panels.get());
  else choose_all<8>(a, chunks, winners, panels.get());
  sum_winners<T>({winners, a.indices, a.rows, a.k, panels.get(), r, a.out, static_cast<A>(a.scale),
                  static_cast<const T*>(a.base), static_cast<T*>(a.y)});
}

template <class T>
void run(const FlyLora& a) {
  using A = Accumulator<T>;
  constexpr bool half = !std::is_same_v<T, A>;
  Scratch<A> wide(half ? a.rows * a.k : 0);
  A* winners = half ? wide.get() : static_cast<A*>(a.winners);
  a.rows <= 2 ? run_few<T>(a, winners) : run_many<T>(a, winners);
}

}  // namespace

void fly_lora(const FlyLora& a) {
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
