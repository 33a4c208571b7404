// fly_lora: y = base + scale * sum over the k winners i of (A x)_i B[:, i].
//
// The plain form reads what a formula names: an entry of A is a product, a winner a column of B. That is what few rows
// of x get. Many rows pay for putting both matrices in order once: A, whose rows of few entries name scattered
// columns, is unpacked into a dense panel, against which a block of rows of x is multiplied with all sums in registers;
// the transpose of B is cut into panels of which each row adds its k winners (fly_lora.h).
#include "fly_lora.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

// Entries of y that are summed at once: `panel` columns for each of `block` rows, most of the vector registers.
template <class A>
constexpr int64_t panel = 2 * Vector<A>::lanes;
constexpr int64_t block = vector_bytes == 64 ? 12 : 6;

// sums (rows, panel) at `stride` += x (rows, n) a (n, panel).
template <int64_t rows, class A>
void multiply(const A* x, int64_t x_stride, const A* a, int64_t n, A* sums, int64_t stride) {
  constexpr int64_t lanes = Vector<A>::lanes;
  typename Vector<A>::type low[rows], high[rows];
#pragma GCC unroll 12
  for (int64_t row = 0; row < rows; ++row) {
    low[row] = vector_at(sums + row * stride);
    high[row] = vector_at(sums + row * stride + lanes);
  }
  for (int64_t c = 0; c < n; ++c, a += panel<A>) {
    const auto a_low = vector_at(a), a_high = vector_at(a + lanes);
#pragma GCC unroll 12
    for (int64_t row = 0; row < rows; ++row) {
      low[row] += x[row * x_stride + c] * a_low;
      high[row] += x[row * x_stride + c] * a_high;
    }
  }
#pragma GCC unroll 12
  for (int64_t row = 0; row < rows; ++row) {
    vector_at(sums + row * stride) = low[row];
    vector_at(sums + row * stride + lanes) = high[row];
  }
}

// The same for a number of rows known only now, at most `most`.
template <int64_t most, class A>
void multiply(int64_t rows, const A* x, int64_t x_stride, const A* a, int64_t n, A* sums, int64_t stride) {
  if (rows == most) return multiply<most>(x, x_stride, a, n, sums, stride);
  if constexpr (most > 1) multiply<most - 1>(rows, x, x_stride, a, n, sums, stride);
}

// Both matrices in order: A as panels (in, panel), zero where no entry is named and beyond the last row, and the
// transpose of B as panels of `width` columns (fly_lora.h).
template <class A>
int64_t padded(int64_t r) {
  return parts(r, panel<A>) * panel<A>;
}
template <class T>
void pack(const Frozen& m, int64_t group, Accumulator<T>* packed) {  // a vector's worth of A's rows
  using A = Accumulator<T>;
  constexpr int64_t lanes = Vector<A>::lanes;
  Scratch<A> rows(lanes * m.in);
  for (int64_t l = 0; l < lanes; ++l) {
    A* row = rows.get() + l * m.in;
    group * lanes + l < m.rows ? unpack<T>(m, group * lanes + l, row) : std::fill(row, row + m.in, A(0));
  }
  transpose(rows.get(), m.in, lanes, m.in, packed + group / 2 * m.in * panel<A> + group % 2 * lanes, panel<A>);
}
template <class T>
void prepare(const FlyLora& a, Accumulator<T>* packed, Accumulator<T>* b) {
  const int64_t r = a.matrix.rows, groups = padded<Accumulator<T>>(r) / Vector<Accumulator<T>>::lanes;
  parallel_for(groups + parts(a.out, width), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      if (t < groups) pack<T>(a.matrix, t, packed);
      else transpose_panel(static_cast<const T*>(a.b), a.out, r, t - groups, b + (t - groups) * r * width);
  });
}

// (A x)_i by the entries of row i alone.
template <class T>
Accumulator<T> entry(const Frozen& m, const T* x, int64_t i) {
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

// y (rows, r) for some rows of x, all of them by one panel of A before the next. `sums` holds rows * padded(r).
template <class T>
void project_rows(const Frozen& m, const T* x, int64_t rows, const Accumulator<T>* packed, Accumulator<T>* sums,
                  Accumulator<T>* y) {
  using A = Accumulator<T>;
  const int64_t stride = padded<A>(m.rows);
  std::fill(sums, sums + rows * stride, A(0));
  const auto add = [&](const A* from, int64_t x_stride, int64_t first, int64_t n) {
    for (int64_t i = 0; i < stride; i += panel<A>)
      for (int64_t row = 0; row < rows; row += block)
        multiply<block>(std::min(block, rows - row), from + row * x_stride, x_stride,
                        packed + i * m.in + first * panel<A>, n, sums + row * stride + i, stride);
  };
  if constexpr (std::is_same_v<T, A>) {
    add(x, m.in, 0, m.in);
  } else {
    constexpr int64_t chunk = 256;
    Scratch<A> wide(rows * chunk);
    for (int64_t c = 0; c < m.in; c += chunk) {
      const int64_t n = std::min(chunk, m.in - c);
      for (int64_t row = 0; row < rows; ++row) widen(x + row * m.in + c, wide.get() + row * chunk, n);
      add(wide.get(), chunk, c, n);
    }
  }
  for (int64_t row = 0; row < rows; ++row) {
    A* to = y + row * m.rows;
    std::copy(sums + row * stride, sums + row * stride + m.rows, to);
    // A zero of the panel makes NaN of an infinite or NaN input that row i of A does not name.
    if (m.indices && std::any_of(to, to + m.rows, [](A v) { return v != v; }))
      for (int64_t i = 0; i < m.rows; ++i) to[i] = entry(m, x + row * m.in, i);
  }
}

template <class T>
void project_all(const FlyLora& a, const Accumulator<T>* packed, Accumulator<T>* y) {
  using A = Accumulator<T>;
  const Frozen& m = a.matrix;
  const T* x = static_cast<const T*>(a.x);
  const int64_t grain = m.rows > panel<A> ? 4 * block : block;  // rows that share a panel of A while it is in L2
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    Scratch<A> sums(grain * padded<A>(m.rows));
    for (int64_t n = begin; n < end; n += grain)
      project_rows(m, x + n * m.in, std::min(grain, end - n), packed, sums.get(), y + n * m.rows);
  });
}

template <class T>
void project_few(const FlyLora& a, Accumulator<T>* y) {
  const Frozen& m = a.matrix;
  parallel_for(a.rows * m.rows, 1 + 8192 / (m.nnz + 1), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) y[s] = entry(m, static_cast<const T*>(a.x) + s / m.rows * m.in, s % m.rows);
  });
}

template <class T>
void add_few(const FlyLora& a, const Accumulator<T>* winners) {
  using A = Accumulator<T>;
  const T *b = static_cast<const T*>(a.b), *base = static_cast<const T*>(a.base);
  parallel_for(a.out, 512, [&](int64_t begin, int64_t end) {
    for (int64_t n = 0; n < a.rows; ++n)
      for (int64_t o = begin; o < end; ++o) {
        A sum = 0;
        for (int64_t j = n * a.k; j < (n + 1) * a.k; ++j) sum += winners[j] * load(b[o * a.matrix.rows + a.indices[j]]);
        const A from = base ? load(base[n * a.out + o]) : A(0);
        store(static_cast<T*>(a.y)[n * a.out + o], from + static_cast<A>(a.scale) * sum);
      }
  });
}

template <class T>
void run(const FlyLora& a) {
  using A = Accumulator<T>;
  constexpr bool half = !std::is_same_v<T, A>;
  const bool few = a.rows <= 2;
  const int64_t r = a.matrix.rows;
  Scratch<A> packed(few ? 0 : padded<A>(r) * a.matrix.in), b(few ? 0 : parts(a.out, width) * r * width);
  Scratch<A> y(a.rows * r), wide(half ? a.rows * a.k : 0);
  A* winners = half ? wide.get() : static_cast<A*>(a.winners);

  if (!few) prepare<T>(a, packed.get(), b.get());
  few ? project_few<T>(a, y.get()) : project_all<T>(a, packed.get(), y.get());
  const DType dtype = std::is_same_v<A, double> ? DType::f64 : DType::f32;
  winner_take_all({y.get(), dtype, a.rows, r, a.k, a.bias, a.selection, winners, a.indices});
  if (half)
    for (int64_t s = 0; s < a.rows * a.k; ++s) store(static_cast<T*>(a.winners)[s], winners[s]);
  if (few) return add_few<T>(a, winners);
  sum_winners<T>({winners, a.indices, a.rows, a.k, b.get(), r, a.out, static_cast<A>(a.scale),
                  static_cast<const T*>(a.base), static_cast<T*>(a.y)});
}

}  // namespace

void fly_lora(const FlyLora& a) {
  by_dtype(a.dtype, [&](auto t) { run<decltype(t)>(a); });
}

}  // namespace FLYK_ISA
}  // namespace flyk
