// project_topk on the GPU, sparse rows: a block takes a row of x, makes its activations and ranks them, see select.h.
// The activations are never written: their ranks are held in shared memory beside x where both fit, and are made anew
// whenever they are looked at where not; those of the winners are made once more, by the same sums in the same order.
#include "scores.h"
#include "select.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

constexpr int warps = 16, threads = warps * warp_size;

// Consecutive entries that one load brings.
template <class V, int N>
struct alignas(N * sizeof(V)) Pack {
  V entry[N];
};

// Activation i of the row of x at `x`, as it would be stored; the matrix is read N entries at a time.
template <class T, int N, class X>
struct Activations {
  const Project& a;
  X x;
  __device__ T operator()(int i) const {
    using A = Accumulator<T>;
    const int64_t packs = a.matrix.nnz / N;
    const auto* values = static_cast<const Pack<T, N>*>(a.matrix.values) + i * packs;
    const auto* columns = reinterpret_cast<const Pack<int32_t, N>*>(a.matrix.indices) + i * packs;
    A sum = 0;
#pragma unroll 1  // two packs at once cost more registers than there are
    for (int j = 0; j < static_cast<int>(packs); ++j) {
      const Pack<T, N> value = values[j];
      const Pack<int32_t, N> column = columns[j];
      for (int e = 0; e < N; ++e) sum += A(load(value.entry[e])) * A(x[column.entry[e]]);
    }
    if (a.activation == Activation::relu && sum < A(0)) sum = 0;
    T stored;
    store(stored, sum);
    return stored;
  }
};

// x in place, as the accumulator.
template <class T>
struct Loaded {
  const T* x;
  __device__ Accumulator<T> operator[](int i) const { return load(x[i]); }
};

template <class T, int N, bool HELD>
__global__ void __launch_bounds__(threads, resident / threads) rows_of(ProjectTopk a) {
  using A = Accumulator<T>;
  __shared__ Board<warps> board;
  const int64_t row = blockIdx.x;
  const int in = static_cast<int>(a.project.matrix.in), m = static_cast<int>(a.project.matrix.rows);
  const Loaded<T> from{static_cast<const T*>(a.project.x) + row * in};
  int64_t* indices = a.indices + row * a.k;
  T* winners = static_cast<T*>(a.winners) + row * a.k;
  const auto pick = [&](const auto& y, const auto& ranks) {
    take<Rank<T>>(board, ranks, m, static_cast<int>(a.k), indices, [&](int j, int i) { winners[j] = y(i); });
  };
  const auto score = [&](T y, int i) {
    return rank_of(score_of(load(y), reinterpret_cast<const A*>(a.bias), i, a.selection));
  };
  if constexpr (HELD) {
    const auto held = dynamic_shared<Rank<T>>(0, m);
    const auto x = dynamic_shared<A>(m * static_cast<int>(sizeof(Rank<T>)), in);
    for (int i = threadIdx.x; i < in; i += threads) x[i] = from[i];
    __syncthreads();
    const Activations<T, N, decltype(x)> y{a.project, x};
    for (int i = threadIdx.x; i < m; i += threads) held[i] = score(y(i), i);
    __syncthreads();
    pick(y, [&](int i) -> Rank<T> { return held[i]; });
  } else {
    const Activations<T, N, Loaded<T>> y{a.project, from};
    pick(y, [&](int i) { return score(y(i), i); });
  }
}

template <class T, int N>
void start(const ProjectTopk& a, int64_t stream) {
  const dim3 grid(static_cast<unsigned>(a.project.rows));
  const int64_t bytes = (a.project.matrix.rows + a.project.matrix.in) * static_cast<int64_t>(sizeof(Rank<T>));
  if (bytes <= dynamic_shared_limit(sizeof(Board<warps>)))
    launch(rows_of<T, N, true>, grid, threads, bytes, stream, a);
  else
    launch(rows_of<T, N, false>, grid, threads, 0, stream, a);
}

// Whether every row of the matrix begins where packs of N may be read.
template <class T, int N>
bool aligned(const Frozen& matrix) {
  return matrix.nnz % N == 0 && reinterpret_cast<uintptr_t>(matrix.values) % alignof(Pack<T, N>) == 0 &&
         reinterpret_cast<uintptr_t>(matrix.indices) % alignof(Pack<int32_t, N>) == 0;
}

}  // namespace

}  // namespace FLYK_ISA
}  // namespace flyk

FLYK_ENTRY flyk_project_topk(int64_t device, int64_t stream, int64_t x, int64_t dtype, int64_t rows, int64_t values,
                             int64_t indices, int64_t m, int64_t in, int64_t nnz, int64_t activation, int64_t k,
                             int64_t bias, int64_t selection, int64_t winners, int64_t winner_indices) {
  using namespace flyk;
  using namespace flyk::FLYK_ISA;
  return guarded(device, [&] {
    if (m > 1 << 30 || in > 1 << 30)
      throw std::invalid_argument("flyk: project_topk takes at most 2^30 rows and columns of the matrix");
    if (rows == 0 || k == 0) return;
    const ProjectTopk a{{at<void>(x), static_cast<DType>(dtype), rows,
                         {at<void>(values), at<int32_t>(indices), m, in, nnz},
                         static_cast<Activation>(activation), nullptr},
                        k, at<float>(bias), static_cast<Selection>(selection), at<void>(winners),
                        at<int64_t>(winner_indices)};
    by_dtype(a.project.dtype, [&](auto t) {
      using T = decltype(t);
      constexpr int wide = sizeof(T) == 8 ? 2 : 4;  // loads of 16 bytes at most
      aligned<T, wide>(a.project.matrix) ? start<T, wide>(a, stream) : start<T, 1>(a, stream);
    });
  });
}
