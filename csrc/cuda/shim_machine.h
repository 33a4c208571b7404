// The machine under shim.h, CUDA's execution model on the host: a block's threads are fibers, run one at a time from one barrier to the next.
//
// Deterministic: threads, and blocks, run forward, backward or in a seeded shuffle (Order), so that a result that
// depends on the order shows as a difference. Every access to shared memory is recorded, and two by different threads
// of which one writes, with no barrier between them, stop the kernel with a sentence (race detection by epochs, as in
// Flanagan and Freund, FastTrack, PLDI 2009): a block's epoch ends at __syncthreads, a warp's at __syncwarp, and at no
// shuffle or ballot, which order no memory. Shared memory starts as 0xff bytes, dynamic and declared alike. Also
// stopped: an index beyond a shared array, and a barrier that not all threads reach.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace flyk {
namespace shim {

enum class Access { read, write, atomic };
enum class Collective { none, sync, ballot, match, shuffle, shuffle_up, shuffle_down, shuffle_xor };

// Who last touched a word of shared memory in each way, as far as a later access needs it.
struct Word {
  struct Seen {
    uint64_t epoch = 0, warp_epoch = 0;  // of the latest access
    uint32_t warps = 0;                  // that touched it in this epoch
    int thread = -1;                     // the latest
    bool several = false;                // threads of one warp since its __syncwarp
  } seen[3];
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done = false, at_barrier = false;
  Collective collective = Collective::none;
  uint32_t mask = 0;
  uint64_t value = 0, result = 0;
  int argument = 0;
};

struct Resettable {
  virtual void reset() = 0;
  virtual ~Resettable() = default;
};

// The one machine of this process: the block that runs, and in which order.
class Machine {
 public:
  int64_t order = 0;  // 0 forward, 1 backward, else the seed of a shuffle
  int64_t dynamic_limit = 48 << 10;  // bytes of shared memory that a launch may ask for
  std::vector<Resettable*> declared;
  std::vector<char> dynamic;
  std::vector<Word> dynamic_words;

  static Machine& get() {
    static Machine machine;
    return machine;
  }

  void run(dim3 grid, int threads, int64_t shared, const std::function<void()>& kernel) {
    fault_.clear();
    kernel_ = &kernel;
    gridDim = grid;
    blockDim = dim3(threads);
    dynamic.resize(shared);
    dynamic_words.resize((shared + 3) / 4);
    for (const int block : sequence(static_cast<int>(grid.x * grid.y * grid.z))) {
      blockIdx = dim3(block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
      run_block(threads);
      if (!fault_.empty()) throw std::runtime_error(fault_);
    }
  }

  void barrier() {
    running().at_barrier = true;
    leave();
  }

  uint64_t collect(Collective kind, uint32_t mask, uint64_t value, int argument) {
    Thread& t = running();
    t.collective = kind, t.mask = mask, t.value = value, t.argument = argument;
    leave();
    return t.result;
  }

  void record(Word& word, Access access) {
    const int warp = current_ / 32;
    for (const Access other : {Access::read, Access::write, Access::atomic}) {
      if (other == access && access != Access::write) continue;
      const auto& s = word.seen[static_cast<int>(other)];
      if (s.epoch != epoch_) continue;
      const bool elsewhere = (s.warps & ~(1u << warp)) != 0;
      const bool beside = s.warp_epoch == warp_epoch_[warp] && (s.several || s.thread != current_);
      if (elsewhere || beside) fail_race(other, s.thread, access);
    }
    auto& s = word.seen[static_cast<int>(access)];
    const bool fresh = s.epoch != epoch_, still = !fresh && s.warp_epoch == warp_epoch_[warp];
    s.several = still && (s.several || s.thread != current_);
    s.warps = (fresh ? 0 : s.warps) | 1u << warp;
    s.epoch = epoch_, s.warp_epoch = warp_epoch_[warp], s.thread = current_;
  }

  [[noreturn]] void fail(const std::string& what) {
    fault_ = "block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(current_) + ": " + what;
    swapcontext(&running().context, &scheduler_);
    std::abort();  // a failed thread is never resumed
  }

 private:
  static constexpr size_t stack_bytes = 1 << 16;
  std::vector<Thread> threads_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_ = nullptr;
  int current_ = 0, count_ = 0;
  uint64_t epoch_ = 1;
  std::vector<uint64_t> warp_epoch_;
  std::string fault_;

  Thread& running() { return threads_[current_]; }
  void leave() { swapcontext(&running().context, &scheduler_); }

  static void enter() {
    Machine& m = get();
    (*m.kernel_)();
    m.running().done = true;
    m.leave();
  }

  std::vector<int> sequence(int n) const {
    std::vector<int> found(n);
    std::iota(found.begin(), found.end(), 0);
    if (order == 1) std::reverse(found.begin(), found.end());
    if (order > 1) std::shuffle(found.begin(), found.end(), std::mt19937_64(order));
    return found;
  }

  void run_block(int threads) {
    count_ = threads;
    if (threads_.size() < size_t(threads)) threads_.resize(threads);
    warp_epoch_.assign((threads + 31) / 32, epoch_++);
    for (Resettable* array : declared) array->reset();
    std::fill(dynamic.begin(), dynamic.end(), char(0xff));
    for (int t = 0; t < threads; ++t) start(threads_[t]);
    const std::vector<int> turns = sequence(threads);
    while (true) {
      bool ran = false;
      for (const int t : turns) {
        if (threads_[t].done || threads_[t].at_barrier || threads_[t].collective != Collective::none) continue;
        ran = true;
        current_ = t;
        threadIdx = dim3(t);
        swapcontext(&scheduler_, &threads_[t].context);
        if (!fault_.empty()) return;
      }
      if (release_warps() || ran) continue;
      const auto here = threads_.begin(), end = here + threads;
      if (std::all_of(here, end, [](const Thread& t) { return t.done; })) return;
      if (!std::all_of(here, end, [](const Thread& t) { return t.at_barrier; })) {
        fault_ = "block " + std::to_string(blockIdx.x) + ": a barrier that only some of the threads reach";
        return;
      }
      for (auto t = here; t != end; ++t) t->at_barrier = false;
      ++epoch_;
    }
  }

  void start(Thread& t) {
    if (!t.stack) t.stack = std::make_unique<char[]>(stack_bytes);
    t.done = t.at_barrier = false;
    t.collective = Collective::none;
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = stack_bytes;
    t.context.uc_link = nullptr;
    makecontext(&t.context, &Machine::enter, 0);
  }

  // Lets go on the warps whose lanes have all arrived at the same collective.
  bool release_warps() {
    bool any = false;
    for (int first = 0; first < count_; first += 32) {
      uint32_t arrived[8] = {};
      const int lanes = std::min(32, count_ - first);
      for (int l = 0; l < lanes; ++l) arrived[static_cast<int>(threads_[first + l].collective)] |= 1u << l;
      for (int l = 0; l < lanes; ++l) {
        const Collective kind = threads_[first + l].collective;
        const uint32_t mask = threads_[first + l].mask;
        if (kind == Collective::none || (mask & ~arrived[static_cast<int>(kind)]) != 0) continue;
        release(&threads_[first], mask, kind);
        if (kind == Collective::sync) ++warp_epoch_[first / 32];
        any = true;
      }
    }
    return any;
  }

  static void release(Thread* warp, uint32_t mask, Collective kind) {
    for (int l = 0; l < 32; ++l) {
      if (!(mask >> l & 1)) continue;
      Thread& t = warp[l];
      int from = l;
      if (kind == Collective::shuffle) from = t.argument & 31;
      if (kind == Collective::shuffle_up && l >= t.argument) from = l - t.argument;
      if (kind == Collective::shuffle_down && l + t.argument < 32) from = l + t.argument;
      if (kind == Collective::shuffle_xor) from = l ^ t.argument;
      t.result = mask >> from & 1 ? warp[from].value : ~uint64_t(0);
      if (kind != Collective::ballot && kind != Collective::match) continue;
      t.result = 0;
      for (int o = 0; o < 32; ++o)
        if (mask >> o & 1 && (kind == Collective::ballot ? warp[o].value != 0 : warp[o].value == t.value))
          t.result |= uint64_t(1) << o;
    }
    for (int l = 0; l < 32; ++l)
      if (mask >> l & 1) warp[l].collective = Collective::none;
  }

  [[noreturn]] void fail_race(Access before, int by, Access now) {
    static const char* const names[] = {"read", "written", "changed atomically"};
    fail(std::string("a race: a word of shared memory is ") + names[static_cast<int>(now)] + " here and was " +
         names[static_cast<int>(before)] + " by thread " + std::to_string(by) + ", with no barrier between");
  }
};

// An entry of shared memory.
template <class T>
class Entry {
 public:
  Entry(T* at, Word* word) : at_(at), word_(word) {}
  operator T() const {
    Machine::get().record(*word_, Access::read);
    return *at_;
  }
  void operator=(T value) const {
    Machine::get().record(*word_, Access::write);
    *at_ = value;
  }
  void operator=(const Entry& other) const { *this = T(other); }
  void operator+=(T value) const { *this = T(*this) + value; }
  T add(T value) const {
    Machine::get().record(*word_, Access::atomic);
    *at_ += value;
    return *at_ - value;
  }

 private:
  T* at_;
  Word* word_;
};

// A run of shared memory; words of 4 bytes, and a wider entry is known by its first.
template <class T>
class Entries {
 public:
  Entries(T* data, Word* words, int64_t count) : data_(data), words_(words), count_(count) {}
  Entry<T> operator[](int64_t i) const {
    if (i < 0 || i >= count_)
      Machine::get().fail("index " + std::to_string(i) + " of a shared array of " + std::to_string(count_));
    return {data_ + i, words_ + i * sizeof(T) / 4};
  }

 private:
  T* data_;
  Word* words_;
  int64_t count_;
};

}  // namespace shim
}  // namespace flyk
