// The first k of n ranks in order, ties by index, by one block: the part that every top-k here shares.
//
// (1) Radix select: digit by digit from the top, the prefix that the k-th rank has. (2) The entries up to it, gathered
// in the order of their indices. (3) A stable radix sort of those by rank. Each warp has a contiguous share of the
// entries and its own counts, so there is no atomic and the result doesn't depend on timing. The sort's two buffers
// are the halves of the row's int64 output: no memory but the block's counts is needed, for any k.
#pragma once

#include "platform.h"

namespace flyk {
namespace FLYK_ISA {

constexpr int digits = 256, no_digit = digits;
constexpr int resident = 1024;  // threads that a multiprocessor is to hold at least: 64 registers each

template <int WARPS>
struct Board {
  Shared<uint32_t, WARPS * digits> counts;  // by warp and digit
  Shared<uint32_t, digits> totals;          // by digit
  Shared<uint32_t, digits> starts;          // by digit: how many have a smaller one
  Shared<uint32_t, 2 * WARPS> shares;       // by warp
  Shared<uint32_t, 2> found;
};

// What of n entries this warp takes: from begin to end.
template <int WARPS>
struct Share {
  int begin, end;
  __device__ explicit Share(int n) {
    const int width = (n - 1) / (WARPS * warp_size) * warp_size + warp_size;
    begin = width * warp() < n ? width * warp() : n;
    end = width < n - begin ? begin + width : n;
  }
};

// The block's counts and totals of digit_of(i), for i from 0 to n; no_digit is not counted. starts is made of them.
template <int WARPS, class Digit>
__device__ __forceinline__ void count_digits(Board<WARPS>& board, int n, const Digit& digit_of) {
  const int row = warp() * digits;
  for (int d = lane(); d < digits; d += warp_size) board.counts[row + d] = 0;
  __syncwarp();
  const Share<WARPS> share(n);
  for (int base = share.begin; base < share.end; base += warp_size) {
    const int i = base + lane();
    const uint32_t digit = i < share.end ? digit_of(i) : no_digit;
    const uint32_t peers = __match_any_sync(whole_warp, digit);
    if (digit != no_digit && lane() == __ffs(peers) - 1) board.counts[row + digit] += __popc(peers);
    __syncwarp();
  }
  __syncthreads();
  for (int d = threadIdx.x; d < digits; d += WARPS * warp_size) {
    uint32_t total = 0;
    for (int w = 0; w < WARPS; ++w) total += board.counts[w * digits + d];
    board.totals[d] = total;
  }
  __syncthreads();
  if (warp() == 0) {
    constexpr int each = digits / warp_size;
    uint32_t own = 0;
    for (int j = 0; j < each; ++j) own += board.totals[lane() * each + j];
    uint32_t before = own;
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const uint32_t other = __shfl_up_sync(whole_warp, before, distance);
      if (lane() >= distance) before += other;
    }
    before -= own;
    for (int j = 0; j < each; ++j) {
      board.starts[lane() * each + j] = before;
      before += board.totals[lane() * each + j];
    }
  }
  __syncthreads();
}

// The first k ranks are those whose bits above `shift` are below `prefix`, and the first `wanted` that equal it.
template <class K>
struct Cut {
  K prefix;
  int shift;
  uint32_t wanted;
};

template <class K, int WARPS, class Ranks>
__device__ __forceinline__ Cut<K> cut(Board<WARPS>& board, const Ranks& rank, int n, int k) {
  constexpr int bits = 8 * sizeof(K);
  Cut<K> c{0, bits, static_cast<uint32_t>(k)};
  while (true) {
    const int above = c.shift;
    c.shift -= 8;
    count_digits(board, n, [&](int i) {
      const K r = rank(i);
      const bool in = above == bits || r >> (above % bits) == c.prefix;
      return in ? static_cast<uint32_t>(r >> c.shift) % digits : static_cast<uint32_t>(no_digit);
    });
    for (int d = threadIdx.x; d < digits; d += WARPS * warp_size) {
      const uint32_t before = board.starts[d];
      if (before < c.wanted && c.wanted - before <= board.totals[d]) {
        board.found[0] = d;
        board.found[1] = before;
      }
    }
    __syncthreads();
    const uint32_t digit = board.found[0];
    c.wanted -= board.found[1];
    c.prefix = c.prefix << 8 | digit;
    const bool all = board.totals[digit] == c.wanted;
    __syncthreads();
    if (all || c.shift == 0) return c;
  }
}

// The indices of the first k ranks, ascending, to `to`.
template <class K, int WARPS, class Ranks>
__device__ __forceinline__ void gather(Board<WARPS>& board, const Ranks& rank, int n, const Cut<K>& c, int32_t* to) {
  const Share<WARPS> share(n);
  uint32_t below = 0, equal = 0;  // of this warp, then of those before it
  for (int i = share.begin + lane(); i < share.end; i += warp_size) {
    const K r = rank(i) >> c.shift;
    below += r < c.prefix;
    equal += r == c.prefix;
  }
  for (int distance = warp_size / 2; distance > 0; distance /= 2) {
    below += __shfl_xor_sync(whole_warp, below, distance);
    equal += __shfl_xor_sync(whole_warp, equal, distance);
  }
  if (lane() == 0) {
    board.shares[2 * warp()] = below;
    board.shares[2 * warp() + 1] = equal;
  }
  __syncthreads();
  below = equal = 0;
  for (int w = 0; w < warp(); ++w) {
    below += board.shares[2 * w];
    equal += board.shares[2 * w + 1];
  }
  const uint32_t earlier = (1u << lane()) - 1;
  for (int base = share.begin; base < share.end; base += warp_size) {
    const int i = base + lane();
    const K r = i < share.end ? rank(i) >> c.shift : ~K(0);
    const uint32_t under = __ballot_sync(whole_warp, i < share.end && r < c.prefix);
    const uint32_t level = __ballot_sync(whole_warp, i < share.end && r == c.prefix);
    const uint32_t ties = equal + __popc(level & earlier);
    const bool takes = under >> lane() & 1 || (level >> lane() & 1 && ties < c.wanted);
    if (takes) to[below + __popc(under & earlier) + (ties < c.wanted ? ties : c.wanted)] = i;
    below += __popc(under);
    equal += __popc(level);
  }
  __syncthreads();
}

// One pass of the stable sort: from `from` to `to` by digit_of an index. False, and nothing done, if all share one.
template <int WARPS, class Digit>
__device__ __forceinline__ bool sort_pass(Board<WARPS>& board, const int32_t* from, int32_t* to, int k, const Digit& digit_of) {
  count_digits(board, k, [&](int j) { return digit_of(from[j]); });
  const bool one = board.totals[digit_of(from[0])] == static_cast<uint32_t>(k);
  if (!one) {
    for (int d = threadIdx.x; d < digits; d += WARPS * warp_size) {
      uint32_t next = board.starts[d];
      for (int w = 0; w < WARPS; ++w) {
        const uint32_t own = board.counts[w * digits + d];
        board.counts[w * digits + d] = next;
        next += own;
      }
    }
    __syncthreads();
    const Share<WARPS> share(k);
    for (int base = share.begin; base < share.end; base += warp_size) {
      const int j = base + lane();
      const int32_t i = j < share.end ? from[j] : 0;
      const uint32_t digit = j < share.end ? digit_of(i) : no_digit;
      const uint32_t peers = __match_any_sync(whole_warp, digit);
      uint32_t next = 0;
      if (digit != no_digit) {
        next = board.counts[warp() * digits + digit];
        to[next + __popc(peers & ((1u << lane()) - 1))] = i;
      }
      __syncwarp();
      if (digit != no_digit && lane() == __ffs(peers) - 1) board.counts[warp() * digits + digit] = next + __popc(peers);
      __syncwarp();
    }
  }
  __syncthreads();
  return !one;
}

// The first k of the ranks rank(0) .. rank(n - 1), in order, to `indices`; emit(j, i) is told that place j is i's.
template <class K, int WARPS, class Ranks, class Emit>
__device__ __forceinline__ void take(Board<WARPS>& board, const Ranks& rank, int n, int k, int64_t* indices, const Emit& emit) {
  int32_t* const upper = reinterpret_cast<int32_t*>(indices) + k;
  int32_t *from = reinterpret_cast<int32_t*>(indices), *to = upper;
  gather(board, rank, n, cut<K>(board, rank, n, k), from);
  for (int shift = 0; shift < static_cast<int>(8 * sizeof(K)); shift += 8) {
    const auto digit_of = [&](int i) { return static_cast<uint32_t>(rank(i) >> shift) % digits; };
    if (!sort_pass(board, from, to, k, digit_of)) continue;
    int32_t* const sorted = to;
    to = from;
    from = sorted;
  }
  if (from != upper) {
    for (int j = threadIdx.x; j < k; j += WARPS * warp_size) upper[j] = from[j];
    __syncthreads();
  }
  // Ascending, an int64 covers only int32s of the upper half that have been read.
  for (int base = 0; base < k; base += WARPS * warp_size) {
    const int j = base + threadIdx.x;
    const int32_t i = j < k ? upper[j] : 0;
    __syncthreads();
    if (j >= k) continue;
    indices[j] = i;
    emit(j, i);
  }
}

}  // namespace FLYK_ISA
}  // namespace flyk
