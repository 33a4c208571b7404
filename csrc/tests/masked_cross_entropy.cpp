// masked_cross_entropy: the loss and its gradient against the softmax in double over the classes that are a target.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

struct Shape {
  int64_t rows, classes, present;  // targets are drawn from so many classes
};

// The softmax of one row over some classes, and what rounding may do to it.
struct Softmax {
  std::vector<double> p;
  double largest = -INFINITY, sum = 0;
  double allowed;  // relative, of an exponential as of their sum

  Softmax(const Buffer& logits, int64_t first, const std::vector<bool>& present, DType dtype) : p(present.size(), 0) {
    double range = 0;
    for (size_t c = 0; c < p.size(); ++c)
      if (present[c]) largest = std::max(largest, logits[first + c]);
    for (size_t c = 0; c < p.size(); ++c)
      if (present[c]) {
        sum += p[c] = std::exp(logits[first + c] - largest);
        if (std::isfinite(logits[first + c] - largest)) range = std::max(range, largest - logits[first + c]);
      }
    for (double& v : p) v /= sum;
    allowed = sum_unit(dtype) * (8 + range + present.size());
  }
};

// What rounding v to a dtype may do to it, and underflow before that.
double rounding(DType dtype, double v) { return 1.01 * unit(dtype) * std::fabs(v) + 0x1p-148 + half_step(dtype); }

void test(Random& random, const Shape& s, DType dtype, Draw draw) {
  const double spread = random.of({1, 30}), scale = random.real();
  Buffer logits(dtype, s.rows * s.classes, [&] { return spread * number(random, draw); });
  const auto choice = columns(random, s.classes, s.present);
  std::vector<int64_t> target;
  std::vector<bool> present(s.classes, false);
  for (int64_t n = 0; n < s.rows; ++n) {
    target.push_back(choice[random.below(s.present)]);
    present[target[n]] = true;
  }

  std::vector<Softmax> softmax;
  double loss = 0, allowed = 0;
  for (int64_t n = 0; n < s.rows; ++n) {
    softmax.emplace_back(logits, n * s.classes, present, dtype);
    const double log_sum = std::log(softmax[n].sum), of_target = logits[n * s.classes + target[n]] - softmax[n].largest;
    loss += (log_sum - of_target) / s.rows;
    allowed += (softmax[n].allowed + 4 * sum_unit(dtype) * (log_sum - of_target)) / s.rows;
  }
  if (s.rows == 0) loss = NAN;

  every(text("%d rows, %d of %d classes, spread %g, %s, %s", int(s.rows), int(s.present), int(s.classes), spread,
             draw_names[int(draw)], dtype_names[int(dtype)]),
        [&](const Kernels& kernels) {
          Buffer mean(dtype, 1, [] { return 7; }), grad(dtype, s.rows * s.classes);
          kernels.masked_cross_entropy({logits.data(), dtype, s.rows, s.classes, target.data(), 0, mean.data()});
          kernels.masked_cross_entropy_backward(
              {logits.data(), dtype, s.rows, s.classes, target.data(), scale, grad.data()});
          expect_near(mean[0], loss, allowed + rounding(dtype, loss), "the loss");
          for (int64_t i = 0; i < s.rows * s.classes; ++i) {
            const int64_t n = i / s.classes, c = i % s.classes;
            const double p = softmax[n].p[c], minus = c == target[n] ? 1 : 0, right = (p - minus) * scale;
            const double off = std::fabs(scale) * (2 * softmax[n].allowed * p + 2 * sum_unit(dtype) * minus);
            expect_near(grad[i], present[c] ? right : 0, present[c] ? off + rounding(dtype, right) : 0,
                        "an entry of the gradient");
          }
          agree(Among::threads, "loss", mean);
          agree(Among::threads, "gradient", grad);
        });
}

}  // namespace

int main() {
  Random random(8);
  for (int i = 0; i < 75; ++i)
    for (const DType dtype : dtypes) {
      Shape s;
      s.rows = random.of({0, 1, 2, 5, 17, 130});
      s.classes = random.of({1, 2, 7, 8, 16, 17, 33, 100, 300});
      s.present = random.of({1, 1 + s.classes / 3, s.classes});
      test(random, s, dtype, draws[i % 3]);
    }
  return finish();
}
