// make_projection: rows of a frozen random matrix from its seed. flyk/ops/make_projection.py defines every bit.
//
// The ladder: (1) an entry depends on its counter alone, so a dense block is one flat stream, cut anywhere; (2) sixteen
// counters at a time as arrays of words, whose loops the compiler turns into vectors; (3) in sparse rows one bit a
// column both says what is taken and where an entry stands in order: nothing is sorted.
// Floats meet + - * and sqrt alone, each rounded once (this file is compiled without contraction), so all builds agree.
#include <algorithm>
#include <cmath>
#include <vector>

#include "column_set.h"
#include "operators.h"
#include "philox.h"

namespace flyk {
namespace FLYK_ISA {

namespace {

constexpr int64_t lanes = 16;

// A standard normal from two words by Box-Muller: sqrt(-2 ln u) cos(2 pi v). The constants are explained in Python.
inline float normal(uint32_t u, uint32_t v) {
  const uint32_t half_root = 0x3f3504f3u;  // sqrt(1/2)
  const uint32_t word = word_of(static_cast<float>(u) + 0.5f) + (0x3f800000u - half_root);
  const float x = float_of((word & 0x7fffffu) + half_root) - 1.0f;
  float p = -0.174008757f;
  p = p * x + 0.285349727f;
  p = p * x - 0.298295349f;
  p = p * x + 0.331551701f;
  p = p * x - 0.399261266f;
  p = p * x + 0.500026762f;
  p = p * x - 0.66667819f;
  p = p * x + 1.0f;
  p = p * x - 2.0f;
  const float exponent = static_cast<float>(32 + 127 - static_cast<int32_t>(word >> 23));
  const float radius = std::sqrt(exponent * 1.38629436f + x * p);

  const float y = static_cast<float>((1 << 30) - static_cast<int32_t>(std::min(v, ~v))) * 0x1p-30f;
  const float square = y * y;
  float s = 0.000150820561f;
  s = s * square - 0.00467222789f;
  s = s * square + 0.079688482f;
  s = s * square - 0.645963371f;
  s = s * square + 1.57079625f;
  return radius * (y * s);
}

// The entries of counters c .. c + count: the word that chooses each one's column, and its value.
void draw(const MakeProjection& a, uint64_t c, int64_t count, uint32_t* column, float* value) {
  const uint32_t k0 = static_cast<uint32_t>(a.seed), k1 = static_cast<uint32_t>(a.seed >> 32);
  uint32_t w0[lanes], w1[lanes], w2[lanes];
  float drawn[lanes];
  for (int64_t at = 0; at < count; at += lanes) {
#pragma omp simd
    for (int64_t i = 0; i < lanes; ++i) {
      const uint64_t counter = c + static_cast<uint64_t>(at + i);
      uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
      philox(c0, c1, c2, c3, k0, k1);
      w0[i] = c0;
      w1[i] = c1;
      w2[i] = c2;
    }
    if (a.kind == Kind::binary) {
      std::fill_n(drawn, lanes, a.std);
    } else if (a.kind == Kind::sparse_sign) {
      for (int64_t i = 0; i < lanes; ++i) drawn[i] = float_of(word_of(a.std) | (w1[i] & 0x80000000u));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < lanes; ++i) drawn[i] = normal(w1[i], w2[i]) * a.std;
    }
    const int64_t n = std::min(lanes, count - at);
    std::copy_n(drawn, n, value + at);
    if (column) std::copy_n(w0, n, column + at);
  }
}

void dense_rows(const MakeProjection& a, int64_t begin, int64_t end) {
  draw(a, static_cast<uint64_t>(a.first + begin) * a.in, (end - begin) * a.in, nullptr, a.values + begin * a.in);
}

// Floyd's sampling: slot s draws from the columns 0 .. last = n - nnz + s, and takes `last` where its draw is taken.
void sparse_rows(const MakeProjection& a, int64_t begin, int64_t end) {
  ColumnSet taken(a.in);
  std::vector<uint32_t> column(a.nnz);
  std::vector<float> value(a.nnz);
  for (int64_t row = begin; row < end; ++row) {
    draw(a, static_cast<uint64_t>(a.first + row) * a.nnz, a.nnz, column.data(), value.data());
    taken.clear();
    for (int64_t s = 0; s < a.nnz; ++s) {
      const uint32_t last = static_cast<uint32_t>(a.in - a.nnz + s);
      const uint32_t t = static_cast<uint32_t>((uint64_t{column[s]} * (uint64_t{last} + 1)) >> 32);
      column[s] = taken.has(t) ? last : t;
      taken.add(column[s]);
    }
    taken.count();
    for (int64_t s = 0; s < a.nnz; ++s) {
      const int64_t to = row * a.nnz + taken.rank(column[s]);
      a.values[to] = value[s];
      a.indices[to] = static_cast<int32_t>(column[s]);
    }
  }
}

}  // namespace

void make_projection(const MakeProjection& a) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(a.nnz, 1));
  parallel_for(a.rows, grain, [&](int64_t begin, int64_t end) {
    a.kind == Kind::gaussian ? dense_rows(a, begin, end) : sparse_rows(a, begin, end);
  });
}

}  // namespace FLYK_ISA
}  // namespace flyk
