// fly_lora backward from (winners, indices) alone: with g = grad, gy_i = scale g . B[:, i] for each winner i,
// grad_x = sum gy_i A_i and grad_b[:, i] = scale sum over rows of y_i g. x is never needed.
//
// The plain form walks each row of g twice, down column i of B and of grad_b for each winner i. Here a task owns
// `width` columns of g, whose panels of B transposed and of grad_b transposed stay in L1 while all rows pass: each
// piece of g is read once and makes both products while it is in registers. No two tasks add to the same sum, so the
// order of every sum is fixed. What a task knows of gy is its share; the shares are added in order, and grad_x is the
// forward's sum of winners with A in place of B (fly_lora.h).
#include "fly_lora.h"

#include "huge_pages.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// The sum of a vector's lanes.
template <class A, int64_t bytes = vector_bytes>
inline A total(const typename Vector<A, bytes>::type& v) {
  if constexpr (bytes == 2 * sizeof(A)) {
    return v[0] + v[1];
  } else {
    typename Vector<A, bytes / 2>::type half[2];
    std::memcpy(half, &v, bytes);
    return total<A, bytes / 2>(half[0] + half[1]);
  }
}

// One row of g meets its k winners in a panel: shares_j = g . b_j and grad_b_j += y_j g.
template <class T, class A = Accumulator<T>>
inline void meet(const T* g, const A* b, const A* y, const int64_t* indices, int64_t k, A* shares, A* grad_b) {
  constexpr int64_t lanes = Vector<A>::lanes, held = 8;
  for (int64_t c = 0; c < width; c += held * lanes) {
    typename Vector<A>::type part[held];
#pragma GCC unroll 8
    for (int64_t h = 0; h < held; ++h) part[h] = read(g + c + h * lanes);
    for (int64_t j = 0; j < k; ++j) {
      const A* from = b + indices[j] * width + c;
      A* to = grad_b + indices[j] * width + c;
      typename Vector<A>::type even{}, odd{};
#pragma GCC unroll 4
      for (int64_t h = 0; h < held; h += 2) {
        even += part[h] * vector_at(from + h * lanes);
        odd += part[h + 1] * vector_at(from + (h + 1) * lanes);
        vector_at(to + h * lanes) += y[j] * part[h];
        vector_at(to + (h + 1) * lanes) += y[j] * part[h + 1];
      }
      const A sum = total<A>(even + odd);
      shares[j] = c == 0 ? sum : shares[j] + sum;
    }
  }
}

// Panel p: its shares (rows, k) of gy, and its columns of g give as many rows of grad_b.
template <class T>
void meet_panel(const FlyLoraBackward& a, const Accumulator<T>* winners, int64_t p, Accumulator<T>* shares) {
  using A = Accumulator<T>;
  const int64_t r = a.matrix.rows, first = p * width, columns = std::min(width, a.out - first);
  Scratch<A> b(r * width), grad_b(r * width);
  transpose_panel(static_cast<const T*>(a.b), a.out, r, p, b.get());
  std::fill(grad_b.get(), grad_b.get() + r * width, A(0));
  T part[width] = {};  // a row's piece of a panel that is not whole
  for (int64_t n = 0; n < a.rows; ++n) {
    const T* g = static_cast<const T*>(a.grad) + n * a.out + first;
    prefetch(g + ahead * a.out, columns);
    if (columns < width) g = std::copy(g, g + columns, part) - columns;
    meet(g, b.get(), winners + n * a.k, a.indices + n * a.k, a.k, shares + n * a.k, grad_b.get());
  }
  if (a.grad_b == nullptr) return;
  for (int64_t s = 0; s < r * width; ++s) grad_b.get()[s] *= static_cast<A>(a.scale);
  transpose(grad_b.get(), width, r, columns, static_cast<T*>(a.grad_b) + first * r, r);
}

// Row i of A, dense, into its place in each panel.
template <class T>
void unpack_panels(const Frozen& m, int64_t i, Accumulator<T>* panels) {
  const int64_t count = parts(m.in, width);
  Scratch<Accumulator<T>> row(count * width);
  std::fill(row.get() + m.in, row.get() + count * width, Accumulator<T>(0));
  unpack<T>(m, i, row.get());
  for (int64_t p = 0; p < count; ++p)
    std::copy(row.get() + p * width, row.get() + (p + 1) * width, panels + (p * m.rows + i) * width);
}

template <class T>
void run(const FlyLoraBackward& a) {
  using A = Accumulator<T>;
  const Frozen& m = a.matrix;
  const int64_t count = a.rows * a.k, panels = parts(a.out, width), rows_of_a = a.grad_x ? m.rows : 0;
  Scratch<A> winners(count), shares(panels * count), gy(count), dense(parts(m.in, width) * rows_of_a * width);
  widen(static_cast<const T*>(a.winners), winners.get(), count);
  parallel_for(panels + rows_of_a, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (t < panels) meet_panel<T>(a, winners.get(), t, shares.get() + t * count);
      else unpack_panels<T>(m, t - panels, dense.get());
  });
  if (a.grad_x == nullptr) return;
  ask_for_huge_pages(a.grad_x, a.rows * m.in * sizeof(T));
  parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
    std::fill(gy.get() + begin, gy.get() + end, A(0));
    for (int64_t p = 0; p < panels; ++p)
      for (int64_t s = begin; s < end; ++s) gy.get()[s] += shares.get()[p * count + s];
  });
  sum_winners<T>({gy.get(), a.indices, a.rows, a.k, dense.get(), m.rows, m.in, static_cast<A>(a.scale), nullptr,
                  static_cast<T*>(a.grad_x)});
}

}  // namespace

void fly_lora_backward(const FlyLoraBackward& a) {
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
