// fly_lora_backward: both gradients against sums in double, each alone and together.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

struct Shape {
  int64_t rows, in, out, r, nnz, k;
  bool sparse;
};

void test(Random& random, const Shape& s, DType dtype, Draw draw) {
  const double scale = draw == Draw::whole ? 0.5 : 0.3;  // 0.3 is another number in float
  const int64_t wanted = 1 + random.below(3);  // 1 to x, 2 to B, 3 to both
  Buffer grad = numbers(random, dtype, s.rows * s.out, draw), winners = numbers(random, dtype, s.rows * s.k, draw);
  Buffer b = numbers(random, dtype, s.out * s.r, draw);
  Matrix a(random, dtype, s.r, s.in, s.nnz, s.sparse, draw);
  std::vector<int64_t> indices;
  for (int64_t n = 0; n < s.rows; ++n)
    for (const int32_t i : columns(random, s.r, s.k)) indices.push_back(i);

  std::vector<Sum> grad_x(s.rows * s.in), grad_b(s.out * s.r);
  for (int64_t j = 0; j < s.rows * s.k; ++j) {
    const int64_t n = j / s.k, i = indices[j];
    Sum back;
    for (int64_t o = 0; o < s.out; ++o) {
      back.add(grad[n * s.out + o], b[o * s.r + i]);
      grad_b[o * s.r + i].add(scale * winners[j], grad[n * s.out + o]);
    }
    for (int64_t e = 0; e < a.nnz; ++e) {
      Sum& to = grad_x[n * s.in + a.column(i, e)];
      to.add(scale * back.value, a.values[i * a.nnz + e]);
      to.size += (back.terms + 4) * std::fabs(scale * back.size * a.values[i * a.nnz + e]);
    }
  }

  const std::string inputs = text("%d rows, %d to %d, r %d, %s %d, k %d, %s, %s, gradients %d", int(s.rows), int(s.in),
                                  int(s.out), int(s.r), s.sparse ? "nnz" : "dense", int(a.nnz), int(s.k),
                                  draw_names[int(draw)], dtype_names[int(dtype)], int(wanted));
  every(inputs, [&](const Kernels& kernels) {
    Buffer to_x(dtype, s.rows * s.in), to_b(dtype, s.out * s.r);
    kernels.fly_lora_backward({grad.data(), dtype, s.rows, s.out, s.k, winners.data(), indices.data(), a.frozen(),
                               b.data(), scale, wanted & 1 ? to_x.data() : nullptr,
                               wanted & 2 ? to_b.data() : nullptr});
    for (int64_t i = 0; wanted & 1 && i < s.rows * s.in; ++i)
      expect_near(to_x[i], grad_x[i].value, grad_x[i].allowed(dtype), "an entry of grad_x");
    for (int64_t i = 0; wanted & 2 && i < s.out * s.r; ++i)
      expect_near(to_b[i], grad_b[i].value, grad_b[i].allowed(dtype), "an entry of grad_b");
    const Among among = draw == Draw::whole ? Among::builds : Among::threads;
    agree(among, "grad_x", to_x);
    agree(among, "grad_b", to_b);
  });
}

}  // namespace

int main() {
  Random random(5);
  for (int i = 0; i < 60; ++i)
    for (const DType dtype : dtypes) {
      Shape s;
      s.rows = random.of({0, 1, 2, 3, 12, 13, 50, 130});
      s.in = random.of({1, 2, 7, 33, 127, 129, 300});
      s.out = random.of({1, 5, 16, 127, 128, 130, 300});
      s.r = random.of({1, 3, 8, 17, 32, 65});
      s.k = random.of({0, 1, s.r / 4, s.r});
      s.nnz = random.below(std::min<int64_t>(s.in, 24) + 1);
      s.sparse = random.below(4) > 0;
      test(random, s, dtype, i % 2 ? Draw::whole : Draw::real);
    }
  return finish();
}
