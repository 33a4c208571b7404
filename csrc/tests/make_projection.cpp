// make_projection: the same bits in every build and in any cut, distinct ascending columns, and Philox as published.
#include "harness.h"

#include "../cpu/philox.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

constexpr const char* kind_names[] = {"gaussian", "sparse_gaussian", "sparse_sign", "binary"};

void test(Kind kind, int64_t in, int64_t nnz, int64_t rows, uint64_t seed) {
  const bool sparse = kind != Kind::gaussian;
  const float std = 0.5f;
  const std::string inputs = text("%s, %d rows, %d of %d", kind_names[int(kind)], int(rows), int(nnz), int(in));
  every(inputs, [&](const Kernels& kernels) {
    const auto made = [&](int64_t first, int64_t count, Buffer& values, std::vector<int32_t>& indices) {
      values = Buffer(DType::f32, count * nnz);
      indices.assign(sparse ? count * nnz : 0, -1);
      kernels.make_projection(
          {kind, in, nnz, std, seed, first, count, values.floats(), sparse ? indices.data() : nullptr});
    };
    Buffer values(DType::f32, 0), part(DType::f32, 0);
    std::vector<int32_t> indices, part_indices;
    made(0, rows, values, indices);
    agree(Among::builds, "values", values);
    agree(Among::builds, "indices", indices);

    const int64_t first = rows / 3, count = rows / 2;
    made(first, count, part, part_indices);
    for (int64_t s = 0; s < count * nnz; ++s) expect(part[s] == values[first * nnz + s], "a block alone differs");
    for (size_t s = 0; s < part_indices.size(); ++s)
      expect(part_indices[s] == indices[first * nnz + s], "a block's columns alone differ");
    double sum = 0, squares = 0;
    for (int64_t s = 0; s < rows * nnz; ++s) {
      sum += values[s];
      squares += values[s] * values[s];
      if (!sparse) continue;
      expect(indices[s] >= 0 && indices[s] < in, "a column is out of range");
      expect(s % nnz == 0 || indices[s] > indices[s - 1], "columns do not ascend");
      if (kind == Kind::sparse_sign) expect(std::fabs(values[s]) == std, "a sign is not of size std");
      if (kind == Kind::binary) expect(values[s] == std, "an entry is not std");
    }
    const double n = static_cast<double>(rows * nnz);
    if (n < 1000) return;
    if (kind != Kind::binary) expect(std::fabs(sum / n) < 5 * std / std::sqrt(n), "the mean is not 0");
    expect(std::fabs(squares / n / (std * std) - 1) < 8 / std::sqrt(n), "the variance is not std squared");
  });
}

// Two of Random123's known answers.
void philox_is_philox() {
  for (const uint32_t all : {0u, ~0u}) {
    uint32_t c0 = all, c1 = all, c2 = all, c3 = all;
    philox(c0, c1, c2, c3, all, all);
    const bool right = all ? c0 == 0x408f276du && c1 == 0x41c83b0eu && c2 == 0xa20bc7c6u && c3 == 0x6d5451fdu
                           : c0 == 0x6627e8d5u && c1 == 0xe169c58du && c2 == 0xbc57ac4cu && c3 == 0x9b00dbd8u;
    expect(right, "philox differs from its known answer");
  }
}

}  // namespace

int main() {
  philox_is_philox();
  for (const Kind kind : {Kind::gaussian, Kind::sparse_gaussian, Kind::sparse_sign, Kind::binary})
    for (const uint64_t seed : {uint64_t{0}, ~uint64_t{0}})
      for (const int64_t in : {1, 2, 63, 64, 65, 300})
        for (const int64_t rows : {0, 1, 100})
          for (const int64_t nnz : {int64_t{0}, int64_t{1}, in / 3, in})
            if (kind != Kind::gaussian || nnz == in) test(kind, in, nnz, rows, seed);
  return finish();
}
