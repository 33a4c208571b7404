// masked_cross_entropy: the mean over rows of log sum e^l - l_target, over the classes that some row has as its target.
//
// The ladder: (1) a mask of -inf as wide as the logits and a softmax over all of them; (2) the columns present copied
// out, and the passes of a softmax over the copy; (3) here the columns of a few rows are gathered into a tile in L1, a
// row to a lane, so that the maximum, the exponentials and their sum are taken for all those rows at once, no lane
// waits for another, and nothing else of a row is read; (4) rows are shared out over the threads, and their losses
// summed in order. The backward does this again, which costs less than to keep and to read back what the forward
// found, and writes each row of the gradient once: zeros, then its few entries.
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
  using Lanes = typename Vector<A>::type;
  static constexpr int64_t lanes = Vector<A>::lanes;
  struct Tile {
    Lanes largest, sum;  // of the logits present; of the exponentials
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
  int64_t room() const { return size() * lanes; }
  int64_t column(int64_t c) const { return columns_[c]; }
  int64_t rank_of_target(int64_t n) const { return rank_[a_.target[n]]; }
  // A thread's share of the rows, of which each costs as many steps as exponentials; or as pay for waking it.
  int64_t grain(int64_t steps) const { return std::max(1 + 16384 / (1 + steps), parts(a_.rows, Pool::threads())); }

  // p[c * lanes + i] = e^(l - largest) over the classes c present, in row first + i of `rows`; lanes beyond are idle.
  Tile run(int64_t first, int64_t rows, A* p) const {
    if (rows < lanes) std::fill(p, p + room(), A(0));
    for (int64_t i = 0; i < rows; ++i) {
      const T* logits = static_cast<const T*>(a_.logits) + (first + i) * a_.classes;
      for (int64_t c = 0; c < size(); ++c) p[c * lanes + i] = load(logits[columns_[c]]);
    }
    Lanes largest = Lanes{} - std::numeric_limits<A>::infinity(), sum = {};
    for (int64_t c = 0; c < room(); c += lanes) largest = vector_at(p + c) > largest ? vector_at(p + c) : largest;
    for (int64_t c = 0; c < room(); c += lanes) {
      const Lanes e = exp(vector_at(p + c) - largest);
      vector_at(p + c) = e;
      sum += e;
    }
    return {largest, sum};
  }

 private:
  static constexpr int64_t absent = -1;

  const MaskedCrossEntropy& a_;
  std::vector<int64_t> rank_, columns_;  // the place of a class among those present, ascending; and back
};

// f(first row, rows, memory for a tile) over all rows, a tile at a time.
template <class T, class F>
void by_tiles(const MaskedCrossEntropy& a, const Softmax<T>& softmax, int64_t steps, const F& f) {
  constexpr int64_t lanes = Softmax<T>::lanes;
  parallel_for(a.rows, softmax.grain(steps), [&](int64_t begin, int64_t end) {
    const Scratch<Accumulator<T>> p(softmax.room());
    for (int64_t first = begin; first < end; first += lanes) f(first, std::min(lanes, end - first), p.get());
  });
}

template <class T>
void mean_loss(const MaskedCrossEntropy& a) {
  using A = Accumulator<T>;
  const Softmax<T> softmax(a);
  const Scratch<A> losses(a.rows);
  by_tiles(a, softmax, softmax.size(), [&](int64_t first, int64_t rows, A* p) {
    const auto [largest, sum] = softmax.run(first, rows, p);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t n = first + i;
      const A of_target = load(static_cast<const T*>(a.logits)[n * a.classes + a.target[n]]);
      losses[n] = std::log(sum[i]) - (of_target - largest[i]);
    }
  });
  double total = 0;
  for (int64_t n = 0; n < a.rows; ++n) total += losses[n];
  store(*static_cast<T*>(a.result), static_cast<A>(total / static_cast<double>(a.rows)));
}

template <class T>
void gradient(const MaskedCrossEntropy& a) {
  using A = Accumulator<T>;
  constexpr int64_t lanes = Softmax<T>::lanes;
  const Softmax<T> softmax(a);
  const A scale = static_cast<A>(a.scale);
  by_tiles(a, softmax, softmax.size() + a.classes / 8, [&](int64_t first, int64_t rows, A* p) {
    const auto inverse = A(1) / softmax.run(first, rows, p).sum;
    for (int64_t i = 0; i < rows; ++i) {
      T* to = static_cast<T*>(a.result) + (first + i) * a.classes;
      const A of_row = inverse[i];
      std::memset(to, 0, a.classes * sizeof(T));
      for (int64_t c = 0; c < softmax.size(); ++c) store(to[softmax.column(c)], p[c * lanes + i] * of_row * scale);
      const A of_target = p[softmax.rank_of_target(first + i) * lanes + i] * of_row;
      store(to[a.target[first + i]], (of_target - 1) * scale);
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
