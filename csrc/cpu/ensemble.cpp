// ensemble: p[i] = max over the online head and the n heads of row i's expert of softmax(W h_i + b).
//
// The plain form takes each row alone and reads its expert's heads again for it. Here rows are grouped by expert, so
// that a head is read once for all its rows, and only the classes seen are read at all. With few rows to a head that
// product is bound by reading the weights: they are taken where they lie, along their rows, `classes_held` of them
// against up to `rows_held` rows of h, whose products are summed in registers. Each sum runs over the same lanes in the
// same order whatever is summed beside it. A second pass over the logits, still in cache, takes softmax and maximum.
#include <cstring>
#include <limits>
#include <vector>

#include "exp.h"
#include "lane_sums.h"
#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class A>
constexpr int64_t classes_held = std::min<int64_t>(4, Vector<A>::lanes);
constexpr int64_t rows_held = vector_bytes == 64 ? 6 : 3;  // what 32 or 16 registers hold

// sums[r][c] = h[r] . w[c] over n entries, whole vectors, for `rows` rows; the lines of `next` are asked for meanwhile.
template <int64_t rows, class A, class T>
void held_dots(const A* const* h, const A* const* w, const T* const* next, int64_t n, A (*sums)[classes_held<A>]) {
  constexpr int64_t lanes = Vector<A>::lanes, classes = classes_held<A>;
  typename Vector<A>::type sum[rows][classes] = {};
  for (int64_t i = 0; i < n; i += lanes) {
    typename Vector<A>::type weight[classes];
#pragma GCC unroll 4
    for (int64_t c = 0; c < classes; ++c) {
      weight[c] = vector_at(w[c] + i);
      if (next) __builtin_prefetch(next[c] + i);
    }
#pragma GCC unroll 6
    for (int64_t r = 0; r < rows; ++r) {
      const typename Vector<A>::type x = vector_at(h[r] + i);
#pragma GCC unroll 4
      for (int64_t c = 0; c < classes; ++c) sum[r][c] += x * weight[c];
    }
  }
#pragma GCC unroll 6
  for (int64_t r = 0; r < rows; ++r) {
    const typename Vector<A>::type totals = lane_sums<A, classes>(sum[r]);
    std::memcpy(sums[r], &totals, sizeof(sums[r]));
  }
}

template <int64_t rows = rows_held, class A, class T>
void dots(int64_t count, const A* const* h, const A* const* w, const T* const* next, int64_t n,
          A (*sums)[classes_held<A>]) {
  if constexpr (rows > 1) {
    if (count < rows) return dots<rows - 1>(count, h, w, next, n, sums);
  }
  held_dots<rows>(h, w, next, n, sums);
}

// Rows of `in` entries as what they are summed in, whole vectors long: read in place where they are so already.
template <class T>
struct Widened {
  using A = Accumulator<T>;
  static constexpr int64_t lanes = Vector<A>::lanes;
  int64_t in, length = parts(in, lanes) * lanes;
  bool in_place = std::is_same_v<T, A> && in == length;

  const A* row(const T* from, A* room) const {
    if constexpr (std::is_same_v<T, A>) {
      if (in_place) return from;
    }
    widen(from, room, in);
    std::fill(room + in, room + length, A(0));
    return room;
  }
};

// The rows of an expert (or all, for the online head) against the rows of one head.
template <class T>
struct Product {
  int64_t begin, end;  // among the grouped rows
  int64_t head;        // its place among the n + 1
  const T *weight, *bias;
  int64_t class_stride;
};

template <class T>
class Ensembler {
  using A = Accumulator<T>;
  using V = typename Vector<A>::type;
  static constexpr int64_t lanes = Vector<A>::lanes, K = classes_held<A>;

 public:
  explicit Ensembler(const Ensemble& a) : a_(a), widened_{a.in} {
    for (int64_t c = 0; c < a.classes; ++c)
      if (!a.seen || a.seen[c]) seen_.push_back(c);
    width_ = parts(seen_.size(), lanes) * lanes;
    group();
  }

  // Rows are taken `slab` at a time, so that the logits stay in cache.
  void run() {
    constexpr int64_t slab = 1024;
    const int64_t size = std::min(slab, a_.rows);
    const Scratch<A> rows(widened_.in_place ? 0 : size * widened_.length), z(size * (a_.heads + 1) * width_);
    std::vector<const A*> h(size);
    for (int64_t begin = 0; begin < a_.rows; begin += slab) {
      const int64_t count = std::min(slab, a_.rows - begin);
      parallel_for(count, 64, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i)
          h[i] = widened_.row(static_cast<const T*>(a_.h) + order_[begin + i] * a_.in, &rows[i * widened_.length]);
      });
      multiply(begin, count, h.data(), z.get());
      parallel_for(count, 8, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) combine(order_[begin + i], &z[i * (a_.heads + 1) * width_]);
      });
    }
  }

 private:
  // order_: the rows, those of an expert together and in their order; ends_[e] is where those before expert e end.
  void group() {
    ends_.assign(a_.experts + 1, 0);
    for (int64_t i = 0; i < a_.rows; ++i) ++ends_[a_.expert_ids[i] + 1];
    for (int64_t e = 0; e < a_.experts; ++e) ends_[e + 1] += ends_[e];
    std::vector<int64_t> next(ends_);
    order_.resize(a_.rows);
    for (int64_t i = 0; i < a_.rows; ++i) order_[next[a_.expert_ids[i]]++] = i;
  }

  std::vector<Product<T>> products(int64_t begin, int64_t count) const {
    const T *weight = static_cast<const T*>(a_.bank_weight), *bias = static_cast<const T*>(a_.bank_bias);
    std::vector<Product<T>> all = {{0, count, 0, static_cast<const T*>(a_.online_weight),
                                    static_cast<const T*>(a_.online_bias), a_.in}};
    for (int64_t e = 0; e < a_.experts; ++e) {
      const int64_t first = std::max(ends_[e] - begin, int64_t(0)), last = std::min(ends_[e + 1] - begin, count);
      for (int64_t j = 0; j < a_.heads && first < last; ++j)
        all.push_back({first, last, j + 1, weight + e * a_.expert_stride + j * a_.head_stride,
                       bias ? bias + (e * a_.heads + j) * a_.classes : nullptr, a_.class_stride});
    }
    return all;
  }

  // z[i, head, c] = the logit of each grouped row. A task is a piece of the classes of at most `chunk` rows of a
  // product: small enough that every thread has several, as large as that allows.
  void multiply(int64_t begin, int64_t count, const A* const* h, A* z) const {
    constexpr int64_t chunk = 64;
    struct Task {
      Product<T> product;
      int64_t first, last;  // classes seen
    };
    std::vector<Task> tasks;
    const int64_t classes = seen_.size(), even = count * classes * (a_.heads + 1) / (16 * Pool::threads()) + 1;
    for (Product<T> p : products(begin, count))
      for (const int64_t end = p.end; p.begin < end; p.begin = p.end) {
        p.end = std::min(p.begin + chunk, end);
        const int64_t pieces = std::clamp<int64_t>((p.end - p.begin) * classes / even, 1, parts(classes, 8 * K));
        const int64_t piece = parts(parts(classes, pieces), K) * K;
        for (int64_t c = 0; c < classes; c += piece) tasks.push_back({p, c, std::min(c + piece, classes)});
      }
    parallel_for(tasks.size(), 1, [&](int64_t first, int64_t last) {
      const Scratch<A> room(widened_.in_place ? 0 : K * widened_.length);
      for (int64_t t = first; t < last; ++t) multiply(tasks[t].product, tasks[t].first, tasks[t].last, h, z, room);
    });
  }

  void multiply(const Product<T>& p, int64_t first, int64_t last, const A* const* h, A* z, const Scratch<A>& r) const {
    const int64_t blocks = parts(p.end - p.begin, rows_held), stride = (a_.heads + 1) * width_;
    const auto weight = [&](int64_t c) { return p.weight + seen_[std::min(c, last - 1)] * p.class_stride; };
    for (int64_t c = first; c < last; c += K) {
      const A* w[K];
      const T* next[K];
      A bias[K];
      for (int64_t k = 0; k < K; ++k) {
        w[k] = widened_.row(weight(c + k), r.get() + k * widened_.length);
        next[k] = weight(c + K + k);
        bias[k] = p.bias ? load(p.bias[seen_[std::min(c + k, last - 1)]]) : A(0);
      }
      for (int64_t b = 0, row = p.begin; b < blocks; ++b) {
        const int64_t count = (p.end - row) / (blocks - b);
        A sums[rows_held][K];
        dots(count, h + row, w, b == 0 ? next : nullptr, widened_.length, sums);
        for (int64_t i = 0; i < count; ++i, ++row)
          for (int64_t k = 0; k < K; ++k) z[row * stride + p.head * width_ + c + k] = sums[i][k] + bias[k];
      }
    }
  }

  // p[row] from the logits of its heads, which become their softmax.
  void combine(int64_t row, A* z) const {
    T* p = static_cast<T*>(a_.p) + row * a_.classes;
    const int64_t classes = seen_.size();
    for (int64_t j = 0; j <= a_.heads; ++j) {
      A* const head = z + j * width_;
      std::fill(head + classes, head + width_, -std::numeric_limits<A>::infinity());
      const A sum = exponentials(head);
      if (sum != sum) {
        store(p[0], sum);
        return std::fill(p + 1, p + a_.classes, p[0]);
      }
      for (int64_t c = 0; c < width_; c += lanes) {
        const V value = vector_at(head + c) * (1 / sum), best = vector_at(z + c);
        vector_at(z + c) = j == 0 || value > best ? value : best;
      }
    }
    if (classes < a_.classes) std::fill(p, p + a_.classes, T{});
    for (int64_t c = 0; c < classes; ++c) store(p[seen_[c]], z[c]);
  }

  // z becomes e^(z - max z); returns their sum.
  A exponentials(A* z) const {
    V most = vector_at(z), sum = {};
    for (int64_t c = lanes; c < width_; c += lanes) most = most > vector_at(z + c) ? most : vector_at(z + c);
    A largest = most[0], total = 0;
    for (int64_t l = 1; l < lanes; ++l) largest = std::max(largest, A(most[l]));
    for (int64_t c = 0; c < width_; c += lanes) sum += vector_at(z + c) = exp(vector_at(z + c) - largest);
    for (int64_t l = 0; l < lanes; ++l) total += sum[l];
    return total;
  }

  const Ensemble& a_;
  const Widened<T> widened_;
  std::vector<int64_t> seen_, order_, ends_;
  int64_t width_;  // of the logits of a head: the classes seen, up to a whole vector
};

}  // namespace

void ensemble(const Ensemble& a) {
  if (a.rows == 0 || a.classes == 0) return;
  by_dtype(a.dtype, [&](auto t) { Ensembler<decltype(t)>(a).run(); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
