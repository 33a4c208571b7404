// What is right, the plain way and in double: projections, scores, winners. And how the inputs of tests are drawn.
#pragma once

#include <algorithm>
#include <numeric>

#include "harness.h"

namespace flyk::tests {

// What numbers are drawn. Sums of whole ones are exact, so results must be too, and ties abound.
enum class Draw { whole, real, special };
constexpr Draw draws[] = {Draw::whole, Draw::real, Draw::special};
constexpr const char* draw_names[] = {"whole", "real", "special"};

inline double number(Random& random, Draw draw) {
  if (draw == Draw::whole) return random.whole(2);
  if (draw == Draw::special && random.below(16) == 0) {
    constexpr double odd[] = {NAN, INFINITY, -INFINITY, -0.0, 0.0, 0x1p-149};
    return odd[random.below(6)];
  }
  return random.real();
}
// For all but one factor: where both are special, underflow decides between 0 times infinity and infinity.
inline Draw finite(Draw draw) { return draw == Draw::special ? Draw::real : draw; }
inline Buffer numbers(Random& random, DType dtype, int64_t n, Draw draw) {
  return Buffer(dtype, n, [&] { return number(random, draw); });
}

// n distinct columns of `in`, in random order.
inline std::vector<int32_t> columns(Random& random, int64_t in, int64_t n) {
  std::vector<int32_t> all(in);
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < n; ++i) std::swap(all[i], all[i + random.below(in - i)]);
  all.resize(n);
  return all;
}

// A frozen matrix; dense where nnz is in.
struct Matrix {
  DType dtype;
  int64_t rows, in, nnz;
  Buffer values;
  std::vector<int32_t> indices;

  Matrix(Random& random, DType t, int64_t m, int64_t in_, int64_t n, bool sparse, Draw draw)
      : dtype(t), rows(m), in(in_), nnz(sparse ? n : in_),
        values(numbers(random, t, m * nnz, finite(draw))) {
    for (int64_t i = 0; sparse && i < m; ++i) {
      const auto row = columns(random, in, nnz);
      indices.insert(indices.end(), row.begin(), row.end());
    }
    if (sparse && indices.empty()) indices.reserve(1);  // an address, for none means dense
    sparse_ = sparse;
  }
  Frozen frozen() { return {values.data(), sparse_ ? indices.data() : nullptr, rows, in, nnz}; }
  int64_t column(int64_t row, int64_t entry) const { return sparse_ ? indices[row * nnz + entry] : entry; }

 private:
  bool sparse_;
};

// A sum in double and the sum of its terms' sizes, which bounds what rounding may do to it.
struct Sum {
  double value = 0, size = 0;
  int64_t terms = 0;
  void add(double a, double b) {
    value += a * b;
    size += std::fabs(a * b);
    ++terms;
  }
  // How far a result in this dtype, summed in any order, may lie off.
  double allowed(DType dtype) const {
    return (terms + 4.0) * sum_unit(dtype) * size + 1.01 * unit(dtype) * std::fabs(value) + 0x1p-149 + half_step(dtype);
  }
};

// Row `row` of x times row `i` of the matrix.
inline Sum projected(const Buffer& x, int64_t row, const Matrix& m, int64_t i) {
  Sum sum;
  for (int64_t j = 0; j < m.nnz; ++j) sum.add(m.values[i * m.nnz + j], x[row * m.in + m.column(i, j)]);
  return sum;
}

// Scores are taken in float but for f64, and so here.
inline double score(DType dtype, double y, double bias, Selection selection) {
  const auto plus = [&](double a) {
    return dtype == DType::f64 ? a + bias : static_cast<double>(static_cast<float>(a) + static_cast<float>(bias));
  };
  if (selection == Selection::signed_) return plus(y);
  return selection == Selection::magnitude ? plus(std::fabs(y)) : std::fabs(plus(y));
}

inline bool before(double a, double b) { return (a != a && b == b) || a > b; }

// The indices of the k best: NaN above all, ties to the lower index.
inline std::vector<int64_t> best(const std::vector<double>& scores, int64_t k) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return before(scores[a], scores[b]); });
  order.resize(k);
  return order;
}

// k distinct indices found in a row whose scores were rounded on the way by at most `allowed`; exact where that is 0.
inline void expect_winners(const std::vector<double>& scores, const int64_t* found, int64_t k, double allowed) {
  const auto right = best(scores, k);
  std::vector<bool> taken(scores.size());
  for (int64_t j = 0; j < k; ++j) {
    const int64_t i = found[j];
    if (i < 0 || i >= static_cast<int64_t>(scores.size()) || taken[i])
      return expect(false, text("winner %d has index %lld", static_cast<int>(j), static_cast<long long>(i)));
    taken[i] = true;
    if (allowed == 0)
      expect(i == right[j], i == right[j] ? "" : text("winner %d is %d and should be %d", static_cast<int>(j),
                                                      static_cast<int>(i), static_cast<int>(right[j])));
    else
      expect_near(scores[i], scores[right[j]], allowed, "score of a winner");
  }
}

// The scores' bias, in float, or double for f64.
inline Buffer bias_for(Random& random, DType dtype, int64_t n, Draw draw) {
  return numbers(random, dtype == DType::f64 ? DType::f64 : DType::f32, n, finite(draw));
}

}  // namespace flyk::tests
