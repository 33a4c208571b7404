// winner_take_all: the k best scores of each row, in descending order.
//
// The plain way sorts the row. From there:
// 1. Scores become integer keys of the same order (winner_take_all.h), so that NaN, -0 and ties need no more thought.
// 2. Rows of at most 64: each key's rank by counting, in registers.
// 3. Longer rows: a threshold that at least k keys reach and few more; those are compressed out in the order of their
//    indices and only they are sorted, by a stable radix sort, which leaves ties in that order.
// 4. The threshold comes from the maxima of 4k interleaved groups of the row instead of the row itself: k maxima
//    reach it, hence at least k keys do, and on data in any usual order hardly more than k.
// No step depends on luck for its result; rows made to defeat 4, or full of ties, only leave more to sort.
#include "winner_take_all.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "operators.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// Keys of the n entries at y, whose biases (if any) start at bias. The choices are taken outside the loops.
template <class T, class A, class K>
void keys_of(const T* y, const A* bias, Selection selection, int64_t n, K* keys) {
  const auto fill = [&](auto score) {
    for (int64_t i = 0; i < n; ++i) keys[i] = key_of(score(load(y[i]), i));
  };
  if (!bias && selection == Selection::signed_) return fill([](A v, int64_t) { return v; });
  if (!bias) return fill([](A v, int64_t) { return std::fabs(v); });
  if (selection == Selection::magnitude) return fill([&](A v, int64_t i) { return std::fabs(v) + bias[i]; });
  if (selection == Selection::signed_) return fill([&](A v, int64_t i) { return v + bias[i]; });
  fill([&](A v, int64_t i) { return std::fabs(v + bias[i]); });
}

// A value that at least k of the n keys reach, and not many more unless they are equal: set bit by bit from the top
// until the count is close.
template <class K>
K threshold(const K* keys, int64_t n, int64_t k) {
  using U = std::make_unsigned_t<K>;
  constexpr U top = U(1) << (8 * sizeof(K) - 1);
  const int64_t enough = k + k / 8 + 16;
  U reached = 0;
  for (U bit = top; bit != 0; bit >>= 1) {
    const K trial = static_cast<K>((reached | bit) ^ top);
    K count = 0;
    for (int64_t i = 0; i < n; ++i) count += keys[i] >= trial;
    if (count < k) continue;
    reached |= bit;
    if (count <= enough) break;
  }
  return static_cast<K>(reached ^ top);
}

// The indices of the n keys that reach `least`, ascending; returns their number. `to` has n + 16 places.
template <class K>
int64_t compress(const K* keys, int64_t n, K least, uint32_t* to) {
  int64_t count = 0, i = 0;
#if defined(__AVX512F__)
  if constexpr (sizeof(K) == 4) {
    const __m512i bound = _mm512_set1_epi32(least);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (; i + 16 <= n; i += 16) {
      const __mmask16 in = _mm512_cmpge_epi32_mask(_mm512_load_si512(keys + i), bound);
      const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(i)));
      _mm512_storeu_si512(to + count, _mm512_maskz_compress_epi32(in, index));
      count += __builtin_popcount(in);
    }
  }
#endif
  for (; i < n; ++i) {
    to[count] = static_cast<uint32_t>(i);
    count += keys[i] >= least;
  }
  return count;
}

template <class U>
struct Entry {
  U distance;  // from the largest key
  uint32_t index;
};

// Sorts by distance, stably, digit by digit from the lowest; returns where the sorted entries lie, in a or in b.
template <class U>
Entry<U>* radix_sort(Entry<U>* a, Entry<U>* b, int64_t n) {
  U differ = 0;  // only these bits are sorted by: scores of a half type leave the low ones alone
  for (int64_t i = 0; i < n; ++i) differ |= a[i].distance;
  int low = 0, bits = 0;
  while (differ != 0 && (differ >> low & 1) == 0) ++low;
  while (low + bits < int(8 * sizeof(U)) && differ >> (low + bits) != 0) ++bits;
  const int widest = n < 4096 ? 9 : 11, passes = (bits + widest - 1) / widest;
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = low + bits * pass / passes, width = low + bits * (pass + 1) / passes - shift;
    const U mask = (U(1) << width) - 1;
    uint32_t start[1 << 11];
    std::fill(start, start + mask + 1, 0u);
    for (int64_t i = 0; i < n; ++i) ++start[(a[i].distance >> shift) & mask];
    uint32_t sum = 0;
    for (U digit = 0; digit <= mask; ++digit) sum += std::exchange(start[digit], sum);
    for (int64_t i = 0; i < n; ++i) b[start[(a[i].distance >> shift) & mask]++] = a[i];
    std::swap(a, b);
  }
  return a;
}

template <class T, class F>
void emit(const WinnerTakeAll& a, int64_t row, const F& index_of) {
  const T* y = static_cast<const T*>(a.y) + row * a.n;
  T* winners = static_cast<T*>(a.winners) + row * a.k;
  int64_t* indices = a.indices + row * a.k;
  for (int64_t j = 0; j < a.k; ++j) {
    indices[j] = index_of(j);
    winners[j] = y[indices[j]];
  }
}

template <class T>
void run_tiny(const WinnerTakeAll& a, int64_t begin, int64_t end) {
  using A = Accumulator<T>;
  alignas(64) KeyOf<A> keys[countable] = {};
  uint8_t order[countable];
  for (int64_t row = begin; row < end; ++row) {
    keys_of(static_cast<const T*>(a.y) + row * a.n, reinterpret_cast<const A*>(a.bias), a.selection, a.n, keys);
    order_by_counting(keys, a.n, order);
    emit<T>(a, row, [&](int64_t j) { return order[j]; });
  }
}

template <class T>
class LongRows {
  using A = Accumulator<T>;
  using K = KeyOf<A>;
  using U = std::make_unsigned_t<K>;

 public:
  explicit LongRows(const WinnerTakeAll& a)
      : a_(a), groups_(groups(a.n, a.k)), keys_(a.n), best_(groups_), indices_(a.n + 16), entries_(0) {}

  void run(int64_t row) {
    const K least = fill_and_bound(static_cast<const T*>(a_.y) + row * a_.n);
    const int64_t count = compress(keys_.get(), a_.n, least, indices_.get());
    if (count <= countable) {
      alignas(64) K few[countable] = {};
      uint8_t order[countable];
      for (int64_t i = 0; i < count; ++i) few[i] = keys_[indices_[i]];
      order_by_counting(few, count, order);
      emit<T>(a_, row, [&](int64_t j) { return indices_[order[j]]; });
    } else {
      const Entry<U>* sorted = sort(count, least);
      emit<T>(a_, row, [&](int64_t j) { return sorted[j].index; });
    }
  }

 private:
  static int64_t groups(int64_t n, int64_t k) {
    const int64_t wanted = (std::max<int64_t>({256, 4 * k, n / 32}) + 63) / 64 * 64;
    return wanted <= n / 2 ? wanted : n;
  }

  // Fills keys_ and returns a key that at least k of them reach.
  K fill_and_bound(const T* y) {
    const A* bias = reinterpret_cast<const A*>(a_.bias);
    std::fill(best_.get(), best_.get() + groups_, std::numeric_limits<K>::min());
    for (int64_t begin = 0; begin < a_.n; begin += groups_) {
      const int64_t size = std::min(groups_, a_.n - begin);
      K* keys = keys_.get() + begin;
      keys_of(y + begin, bias ? bias + begin : nullptr, a_.selection, size, keys);
      for (int64_t g = 0; g < size; ++g) best_[g] = std::max(best_[g], keys[g]);
    }
    return threshold(best_.get(), groups_, a_.k);
  }

  const Entry<U>* sort(int64_t count, K least) {
    if (count > room_) {
      room_ = std::min(a_.n, count + count / 2);
      Scratch<Entry<U>>(2 * room_).swap(entries_);
    }
    K largest = least;
    for (int64_t i = 0; i < count; ++i) largest = std::max(largest, keys_[indices_[i]]);
    for (int64_t i = 0; i < count; ++i)
      entries_[i] = {static_cast<U>(static_cast<U>(largest) - static_cast<U>(keys_[indices_[i]])), indices_[i]};
    return radix_sort(entries_.get(), entries_.get() + room_, count);
  }

  const WinnerTakeAll& a_;
  const int64_t groups_;
  Scratch<K> keys_, best_;
  Scratch<uint32_t> indices_;
  int64_t room_ = 0;
  Scratch<Entry<U>> entries_;
};

template <class T>
void run(const WinnerTakeAll& a, int64_t begin, int64_t end) {
  if (a.k == 0) return;
  if (a.n <= countable) return run_tiny<T>(a, begin, end);
  LongRows<T> rows(a);
  for (int64_t row = begin; row < end; ++row) rows.run(row);
}

}  // namespace

void winner_take_all_rows(const WinnerTakeAll& a, int64_t begin, int64_t end) {
  if (a.n > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("flyk: a row of winner_take_all holds at most 2^31 - 1 entries");
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a, begin, end); });
}

void winner_take_all(const WinnerTakeAll& a) {
  parallel_for(a.rows, 1 + 32768 / (a.n + 1),
               [&](int64_t begin, int64_t end) { winner_take_all_rows(a, begin, end); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
