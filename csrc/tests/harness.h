// What the tests are made of: numbers of any dtype in memory of exactly their size, the builds of the kernels one after
// another with and without threads, and what is said of a fault.
//
// A test is one file and one executable, named after its kernel; CMake finds it. It draws inputs, works out in double
// what is right (naive.h), and in every() calls the kernel, expects what is right, and shows what it got as
// `agree`: the same bits with and without threads, and, where that is promised, in every build.
#pragma once

#define FLYK_ISA tests  // dtypes.h once more, for the tests alone
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "../dtypes.h"
#include "../kernels.h"
#include "../parallel.h"

namespace flyk::tests {

constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
constexpr const char* dtype_names[] = {"f32", "f64", "bf16", "f16"};
constexpr Selection selections[] = {Selection::magnitude, Selection::signed_, Selection::biased_magnitude};

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(word() % static_cast<uint64_t>(n)); }
  int64_t of(std::initializer_list<int64_t> choices) { return choices.begin()[below(choices.size())]; }
  double real() { return static_cast<double>(word() >> 11) * 0x1p-52 - 1.0; }           // in [-1, 1)
  double whole(int64_t most) { return static_cast<double>(below(2 * most + 1) - most); }  // sums of it are exact

 private:
  uint64_t state_;
};

inline size_t size_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }

// n numbers of a dtype, NaN at first. They end where their memory ends, so that a sanitizer sees one step too far, and
// of an odd number begin one number into it: a kernel may rely on no alignment but that of a number.
class Buffer {
 public:
  Buffer(DType dtype, int64_t n)
      : dtype_(dtype), size_(n), skip_(n % 2 * size_of(dtype)), bytes_(skip_ + n * size_of(dtype), 0xff) {}
  template <class F>
  Buffer(DType dtype, int64_t n, const F& number) : Buffer(dtype, n) {
    for (int64_t i = 0; i < n; ++i) set(i, number());
  }
  int64_t size() const { return size_; }
  void* data() { return bytes_.data() + skip_; }
  float* floats() { return static_cast<float*>(data()); }
  const std::vector<unsigned char>& bytes() const { return bytes_; }
  double operator[](int64_t i) const {
    double found = 0;
    by_dtype(dtype_, [&](auto t) { found = load(*(reinterpret_cast<const decltype(t)*>(bytes_.data() + skip_) + i)); });
    return found;
  }
  void set(int64_t i, double v) {
    by_dtype(dtype_, [&](auto t) {
      using T = decltype(t);
      store(static_cast<T*>(data())[i], static_cast<Accumulator<T>>(v));
    });
  }

 private:
  DType dtype_;
  int64_t size_, skip_;
  std::vector<unsigned char> bytes_;
};

// v as a dtype holds it.
inline double rounded(DType dtype, double v) { return Buffer(dtype, 1, [&] { return v; })[0]; }
// The largest relative error of one rounding to a dtype, and of one in the sums over it.
inline double unit(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}
// Half its smallest number.
inline double half_step(DType dtype) {
  return dtype == DType::f64 ? 0 : dtype == DType::f32 ? 0x1p-150 : dtype == DType::bf16 ? 0x1p-134 : 0x1p-25;
}
inline double sum_unit(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }

// Stands in for GOMP_parallel: a team of the calling thread and as many more as it takes.
inline void stand_in_pool(void (*body)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> team;
  for (unsigned i = 1; i < threads; ++i) team.emplace_back(body, data);
  body(data);
  for (std::thread& thread : team) thread.join();
}

inline std::string text(const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

struct State {
  std::string inputs, build;  // what is being tested now
  int cases = 0, faults = 0;
  std::map<std::string, std::vector<unsigned char>> seen;
};
inline State& state() {
  static State s;
  return s;
}

inline void expect(bool right, const std::string& what) {
  if (right || ++state().faults > 20) return;
  std::printf("wrong: %s; %s: %s\n", state().inputs.c_str(), state().build.c_str(), what.c_str());
}
// Both NaN, equal, or, where finite is right, no further apart than `allowed`.
inline void expect_near(double got, double right, double allowed, const std::string& what) {
  const bool close = std::isfinite(right) && std::fabs(got - right) <= allowed;
  const bool near = (got != got && right != right) || got == right || close;
  expect(near, near ? "" : text("%s is %.9g and should be %.9g, give or take %.1g", what.c_str(), got, right, allowed));
}

enum class Among { threads, builds };
// What was got under this name must have the same bits whatever the threads, or whatever the build too.
inline void agree(Among among, const std::string& name, const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  const std::vector<unsigned char> got(from, from + bytes);
  const std::string build = state().build.substr(0, state().build.find(','));
  const auto first = state().seen.emplace(among == Among::builds ? name : name + " of " + build, got).first;
  expect(first->second == got, name + " differs from what was got before");
}
// NaNs count as the same: which of two a sum keeps is the compiler's choice.
inline void agree(Among among, const std::string& name, Buffer got) {
  for (int64_t i = 0; i < got.size(); ++i)
    if (std::isnan(got[i])) got.set(i, NAN);
  agree(among, name, got.bytes().data(), got.bytes().size());
}
template <class T>
void agree(Among among, const std::string& name, const std::vector<T>& got) {
  agree(among, name, got.data(), got.size() * sizeof(T));
}

// run(kernels) for each build that this processor can run, by the calling thread and by a team of three.
template <class F>
void every(const std::string& inputs, const F& run) {
  state().inputs = inputs;
  state().seen.clear();
  ++state().cases;
  for (const Kernels* kernels : tables())
    for (const int threads : {1, 3}) {
      state().build = text("%s, %d threads", kernels->isa, threads);
      Pool::entry() = threads == 1 ? nullptr : stand_in_pool;
      Pool::threads() = threads;
      run(*kernels);
    }
}

// The exit status of a test.
inline int finish() {
  std::printf("%d cases, %d faults; builds:", state().cases, state().faults);
  for (const Kernels* kernels : tables()) std::printf(" %s", kernels->isa);
  std::printf("\n");
  return state().faults == 0 && state().cases > 0 ? 0 : 1;
}

}  // namespace flyk::tests
