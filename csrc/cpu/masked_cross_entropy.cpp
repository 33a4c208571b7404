// masked_cross_entropy: the mean over rows of log sum e^l - l_target, over the classes that some row has as its target.
//
// The ladder: (1) a mask of -inf as wide as the logits and a softmax over all of them; (2) the columns present copied
// out, and the passes of a softmax over the copy; (3) here the columns of one row are gathered into L1, where the
// maximum, the exponentials and their sum are taken by whole vectors, and nothing else of that row is read; (4) rows
// are shared out over the threads, and their losses summed in order. The backward does this again, which costs less
// than to keep and to read back what the forward found, and writes each row of the gradient once: zeros, then its few
// entries.
#include <cmath>
#include <limits>
#include <vector>

#include "exp.h"
#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

template <class T>
class Softmax {
 public:
  using A = Accumulator<T>;
  struct Row {
    A largest, sum;  // of the logits present; of the exponentials
  };

  explicit Softmax(const MaskedCrossEntropy& a) : a_(a), rank_(a.classes, absent) {
    for (int64_t n = 0; n < a.rows; ++n) rank_[a.target[n]] = 0;
    for (int64_t c = 0; c < a.classes; ++c)
      if (rank_[c] != absent) {
        rank_[c] = size();
        columns_.push_back(c);
      }
  }

  int64_t size() const { return static_cast<int64_t>(columns_.size()); }
  int64_t room() const { return parts(size(), lanes) * lanes; }
  int64_t column(int64_t c) const { return columns_[c]; }
  int64_t rank_of_target(int64_t n) const { return rank_[a_.target[n]]; }
  // A thread's share of the rows, of which each costs as many steps as exponentials; or as pay for waking it.
  int64_t grain(int64_t steps) const { return std::max(1 + 16384 / (1 + steps), parts(a_.rows, Pool::threads())); }

  // p = e^(l - largest) over the classes present, in row n; it has room for whole vectors.
  Row run(int64_t n, A* p) const {
    const T* logits = static_cast<const T*>(a_.logits) + n * a_.classes;
    if (size() == a_.classes) widen(logits, p, size());
    else for (int64_t c = 0; c < size(); ++c) p[c] = load(logits[columns_[c]]);
    std::fill(p + size(), p + room(), -std::numeric_limits<A>::infinity());
    const int64_t end = room();
    Lanes most = vector_at(p), sums = {};
    for (int64_t c = lanes; c < end; c += lanes) most = vector_at(p + c) > most ? vector_at(p + c) : most;
    const A largest = folded<vector_bytes>(most, [](const auto& a, const auto& b) { return a > b ? a : b; });
    for (int64_t c = 0; c < end; c += lanes) {
      const Lanes e = exp(vector_at(p + c) - largest);
      vector_at(p + c) = e;
      sums += e;
    }
    return {largest, folded<vector_bytes>(sums, [](const auto& a, const auto& b) { return a + b; })};
  }

 private:
  using Lanes = typename Vector<A>::type;
  static constexpr int64_t lanes = Vector<A>::lanes, absent = -1;

  // All lanes combined, one half with the other until one lane is left.
  template <int64_t bytes, class F>
  static A folded(const typename Vector<A, bytes>::type& v, const F& f) {
    if constexpr (bytes == 2 * sizeof(A)) {
      return f(A(v[0]), A(v[1]));
    } else {
      typename Vector<A, bytes / 2>::type half[2];
      std::memcpy(half, &v, bytes);
      return folded<bytes / 2>(f(half[0], half[1]), f);
    }
  }

  const MaskedCrossEntropy& a_;
  std::vector<int64_t> rank_, columns_;  // the place of a class among those present, ascending; and back
};

template <class T>
void mean_loss(const MaskedCrossEntropy& a) {
  using A = Accumulator<T>;
  const Softmax<T> softmax(a);
  const Scratch<A> losses(a.rows);
  parallel_for(a.rows, softmax.grain(softmax.size()), [&](int64_t begin, int64_t end) {
    const Scratch<A> p(softmax.room());
    for (int64_t n = begin; n < end; ++n) {
      const auto [largest, sum] = softmax.run(n, p.get());
      const A of_target = load(static_cast<const T*>(a.logits)[n * a.classes + a.target[n]]);
      losses[n] = std::log(sum) - (of_target - largest);
    }
  });
  double total = 0;
  for (int64_t n = 0; n < a.rows; ++n) total += losses[n];
  store(*static_cast<T*>(a.result), static_cast<A>(total / static_cast<double>(a.rows)));
}

template <class T>
void gradient(const MaskedCrossEntropy& a) {
  using A = Accumulator<T>;
  const Softmax<T> softmax(a);
  const A scale = static_cast<A>(a.scale);
  parallel_for(a.rows, softmax.grain(softmax.size() + a.classes / 8), [&](int64_t begin, int64_t end) {
    const Scratch<A> p(softmax.room());
    for (int64_t n = begin; n < end; ++n) {
      T* to = static_cast<T*>(a.result) + n * a.classes;
      const A inverse = 1 / softmax.run(n, p.get()).sum;
      std::memset(to, 0, a.classes * sizeof(T));
      for (int64_t c = 0; c < softmax.size(); ++c) store(to[softmax.column(c)], p[c] * inverse * scale);
      store(to[a.target[n]], (p[softmax.rank_of_target(n)] * inverse - 1) * scale);
    }
  });
}

}  // namespace

void masked_cross_entropy(const MaskedCrossEntropy& a) {
  by_dtype(a.dtype, [&](auto t) { mean_loss<decltype(t)>(a); });
}

void masked_cross_entropy_backward(const MaskedCrossEntropy& a) {
  by_dtype(a.dtype, [&](auto t) { gradient<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
