// The k-winner Gram on the GPU: G (lower triangle) += phi^T phi and q += class sums, for phi given by its winners.
//
// A block owns a panel of one row of G, holds it in shared memory and adds to it sample by sample, in their order: the
// same bits in every run, no float is ever changed by two blocks. Which samples won a row says a bit matrix (m rows of
// one bit a sample), filled before by integer atomics, whose order leaves no trace. Long rows come first.
#include "../dtypes.h"
#include "platform.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

constexpr int threads = 256, panel = 8192;

__global__ void __launch_bounds__(threads) mark(WinnerGram a, uint32_t* won) {
  const int64_t words = (a.rows + 31) / 32;
  const int64_t entry = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (entry >= a.rows * a.k) return;
  const int64_t sample = entry / a.k;
  atomicOr(won + a.indices[entry] * words + sample / 32, 1u << (sample % 32));
}

// What the block of panel blockIdx.y of row m - 1 - blockIdx.x adds to it.
__global__ void __launch_bounds__(threads) add(WinnerGram a, const uint32_t* won) {
  __shared__ Shared<float, panel> sums;
  __shared__ Shared<float, 2> factors;  // of this sample and the next: one barrier for each is enough
  const int64_t row = a.m - 1 - static_cast<int64_t>(blockIdx.x), begin = static_cast<int64_t>(blockIdx.y) * panel;
  if (begin > row) return;
  const int64_t end = begin + panel < row + 1 ? begin + panel : row + 1, words = (a.rows + 31) / 32;
  float* g = a.g + row * a.m;
  bool touched = false;
  int turn = 0;
  const auto add_sample = [&](int64_t sample) {
    const int64_t* column = a.indices + sample * a.k;
    const float* value = a.winners + sample * a.k;
    if (!touched)
      for (int64_t c = begin + threadIdx.x; c < end; c += threads) sums[c - begin] = g[c];
    touched = true;
    turn ^= 1;
    for (int64_t j = threadIdx.x; j < a.k; j += threads)
      if (column[j] == row) factors[turn] = value[j];
    __syncthreads();
    const float factor = factors[turn];
    for (int64_t j = threadIdx.x; j < a.k; j += threads)
      if (column[j] >= begin && column[j] < end) sums[column[j] - begin] += factor * value[j];
    if (threadIdx.x == 0 && begin == 0) a.q[row * a.classes + a.labels[sample]] += factor;
  };
  for (int64_t base = 0; base < words; base += warp_size) {
    const uint32_t own = base + lane() < words ? won[row * words + base + lane()] : 0;
    for (int w = 0; w < warp_size && base + w < words; ++w)
      for (uint32_t word = __shfl_sync(whole_warp, own, w); word != 0; word &= word - 1)
        add_sample(32 * (base + w) + __ffs(word) - 1);
  }
  if (!touched) return;
  __syncthreads();
  for (int64_t c = begin + threadIdx.x; c < end; c += threads) g[c] = sums[c - begin];
}

}  // namespace

}  // namespace FLYK_ISA
}  // namespace flyk

// `won` is zero: m rows of (rows + 31) / 32 words.
FLYK_ENTRY flyk_winner_gram(int64_t device, int64_t stream, int64_t winners, int64_t indices, int64_t labels,
                            int64_t rows, int64_t k, int64_t m, int64_t classes, int64_t g, int64_t q, int64_t won) {
  using namespace flyk;
  using namespace flyk::FLYK_ISA;
  return guarded(device, [&] {
    if (rows == 0 || k == 0) return;
    const WinnerGram a{at<float>(winners), at<int64_t>(indices), at<int64_t>(labels), rows, k, m, classes,
                       at<float>(g), at<float>(q), false};
    const dim3 entries(static_cast<unsigned>((rows * k + threads - 1) / threads));
    launch(mark, entries, threads, 0, stream, a, at<uint32_t>(won));
    const dim3 panels(static_cast<unsigned>(m), static_cast<unsigned>((m + panel - 1) / panel));
    launch(add, panels, threads, 0, stream, a, static_cast<const uint32_t*>(at<uint32_t>(won)));
  });
}
