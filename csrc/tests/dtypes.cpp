// Half types, whose conversion in software every kernel shares: each of the 65536 comes back from float as it was, and
// what lies between two goes to the nearer, at half way to the even one.
#include "harness.h"

using namespace flyk;
using namespace flyk::tests;

namespace {

template <class T>
void test(const char* name) {
  state().inputs = name;
  ++state().cases;
  const auto finite = [](uint16_t bits) { return std::isfinite(load(T{bits})); };
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const T half{static_cast<uint16_t>(bits)};
    const float wide = load(half);
    T back;
    store(back, wide);
    expect(wide != wide ? load(back) != load(back) : back.bits == half.bits, text("0x%04x comes back changed", bits));
    if (!finite(half.bits) || !finite(half.bits + 1)) continue;
    const float next = load(T{static_cast<uint16_t>(bits + 1)}), middle = wide + (next - wide) / 2;
    store(back, middle);
    expect(back.bits == bits + (bits & 1), text("half way above 0x%04x is not rounded to even", bits));
    store(back, std::nextafter(middle, wide));
    expect(back.bits == bits, text("what is just above 0x%04x is not rounded down", bits));
    store(back, std::nextafter(middle, next));
    expect(back.bits == bits + 1, text("what is just below 0x%04x is not rounded up", bits + 1));
  }
}

}  // namespace

int main() {
  state().build = "software";
  test<bf16>("bf16");
  test<f16>("f16");
  return finish();
}
