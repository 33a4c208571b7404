// winner_take_all on the GPU: short rows by a warp, which counts for each entry those before it; others by a block,
// see select.h, its ranks held in shared memory where they fit, so that the row is read once.
#include "scores.h"
#include "select.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

constexpr int few_warps = 4;

template <class T>
struct RowRanks {
  using A = Accumulator<T>;
  const T* y;
  const A* bias;
  Selection selection;
  __device__ RowRanks(const WinnerTakeAll& a, int64_t row)
      : y(static_cast<const T*>(a.y) + row * a.n), bias(reinterpret_cast<const A*>(a.bias)), selection(a.selection) {}
  __device__ Rank<T> operator()(int i) const { return rank_of(score_of(load(y[i]), bias, i, selection)); }
};

// Rows of up to 32 EACH entries, a warp for each: an entry's place is the number of those that come before it.
template <class T, int EACH>
__global__ void __launch_bounds__(few_warps* warp_size) few(WinnerTakeAll a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * few_warps + warp();
  if (row >= a.rows) return;
  const RowRanks<T> rank(a, row);
  Rank<T> own[EACH];
  int place[EACH] = {};
  for (int e = 0; e < EACH; ++e) {
    const int i = e * warp_size + lane();
    own[e] = i < a.n ? rank(i) : ~Rank<T>(0);
  }
#pragma unroll
  for (int from = 0; from < EACH; ++from) {
    for (int l = 0; l < warp_size; ++l) {
      const Rank<T> other = __shfl_sync(whole_warp, own[from], l);
#pragma unroll
      for (int e = 0; e < EACH; ++e) {
        const bool earlier = from * warp_size + l < e * warp_size + lane();
        place[e] += other < own[e] || (other == own[e] && earlier);
      }
    }
  }
  for (int e = 0; e < EACH; ++e) {
    const int i = e * warp_size + lane();
    if (i >= a.n || place[e] >= a.k) continue;
    a.indices[row * a.k + place[e]] = i;
    static_cast<T*>(a.winners)[row * a.k + place[e]] = rank.y[i];
  }
}

template <class T, int WARPS, bool HELD>
__global__ void __launch_bounds__(WARPS* warp_size, resident / (WARPS * warp_size)) many(WinnerTakeAll a) {
  __shared__ Board<WARPS> board;
  const int64_t row = blockIdx.x;
  const int n = static_cast<int>(a.n), k = static_cast<int>(a.k);
  const RowRanks<T> rank(a, row);
  int64_t* indices = a.indices + row * a.k;
  T* winners = static_cast<T*>(a.winners) + row * a.k;
  const auto emit = [&](int j, int i) { winners[j] = rank.y[i]; };
  if constexpr (HELD) {
    const auto held = dynamic_shared<Rank<T>>(0, n);
    for (int i = threadIdx.x; i < n; i += WARPS * warp_size) held[i] = rank(i);
    __syncthreads();
    take<Rank<T>>(board, [&](int i) -> Rank<T> { return held[i]; }, n, k, indices, emit);
  } else {
    take<Rank<T>>(board, rank, n, k, indices, emit);
  }
}

template <class T, int WARPS>
void start_many(const WinnerTakeAll& a, int64_t stream) {
  const dim3 grid(static_cast<unsigned>(a.rows));
  const int64_t bytes = a.n * static_cast<int64_t>(sizeof(Rank<T>));
  if (bytes <= dynamic_shared_limit(sizeof(Board<WARPS>)))
    launch(many<T, WARPS, true>, grid, WARPS * warp_size, bytes, stream, a);
  else
    launch(many<T, WARPS, false>, grid, WARPS * warp_size, 0, stream, a);
}

template <class T>
void start(const WinnerTakeAll& a, int64_t stream) {
  const dim3 grid(static_cast<unsigned>((a.rows + few_warps - 1) / few_warps));
  if (a.n <= warp_size) return launch(few<T, 1>, grid, few_warps * warp_size, 0, stream, a);
  if (a.n <= 4 * warp_size) return launch(few<T, 4>, grid, few_warps * warp_size, 0, stream, a);
  if (a.n <= 2048) return start_many<T, 4>(a, stream);
  start_many<T, 16>(a, stream);
}

}  // namespace

}  // namespace FLYK_ISA
}  // namespace flyk

FLYK_ENTRY flyk_winner_take_all(int64_t device, int64_t stream, int64_t y, int64_t dtype, int64_t rows, int64_t n,
                                int64_t k, int64_t bias, int64_t selection, int64_t winners, int64_t indices) {
  using namespace flyk;
  using namespace flyk::FLYK_ISA;
  return guarded(device, [&] {
    if (n > 1 << 30) throw std::invalid_argument("flyk: a row of winner_take_all holds at most 2^30 entries");
    if (rows == 0 || k == 0) return;
    const WinnerTakeAll a{at<void>(y), static_cast<DType>(dtype), rows, n, k, at<float>(bias),
                          static_cast<Selection>(selection), at<void>(winners), at<int64_t>(indices)};
    by_dtype(a.dtype, [&](auto t) { start<decltype(t)>(a, stream); });
  });
}
