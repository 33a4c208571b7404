// ema_: every entry of the bank against its formula in double.
#include "naive.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

void test(Random& random, int64_t heads, int64_t entries, DType dtype, Draw draw) {
  const Buffer bank = numbers(random, dtype, heads * entries, draw);
  Buffer online = numbers(random, dtype, entries, draw);
  std::vector<double> decays;
  for (int64_t j = 0; j < heads; ++j) {
    const int64_t choice = random.below(4);
    decays.push_back(draw == Draw::whole ? choice / 4.0 : choice == 3 ? 1 : choice == 2 ? 0.999 : choice * 0.9);
  }
  every(text("%d heads of %d, %s, %s", int(heads), int(entries), draw_names[int(draw)], dtype_names[int(dtype)]),
        [&](const Kernels& kernels) {
          Buffer moved = bank;
          kernels.ema_({moved.data(), dtype, heads, entries, online.data(), decays.data()});
          for (int64_t i = 0; i < heads * entries; ++i) {
            Sum right;
            right.add(decays[i / entries], bank[i]);
            right.add(1 - decays[i / entries], online[i % entries]);
            expect_near(moved[i], right.value, right.allowed(dtype), "an entry");
          }
          agree(draw == Draw::whole ? Among::builds : Among::threads, "bank", moved);
        });
}

}  // namespace

int main() {
  Random random(7);
  for (int i = 0; i < 30; ++i)
    for (const DType dtype : dtypes)
      test(random, random.below(4), random.of({0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100}), dtype, draws[i % 3]);
  // Several blocks to a thread, and several threads; the last block of no whole vectors.
  for (const DType dtype : dtypes)
    for (const int64_t entries : {4095, 4097, 8200}) test(random, 5, entries, dtype, Draw::whole);
  return finish();
}
