// Threads are borrowed: the host hands over the entry point of the OpenMP pool that the process already runs, so
// there is never a second pool beside torch's. Without one, work is done by the calling thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

namespace flyk {

// GOMP_parallel of libgomp (libomp and libiomp export it too): runs body(data) once on each thread of a team.
using TeamEntry = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);

struct Pool {
  static TeamEntry& entry() {
    static TeamEntry e = nullptr;
    return e;
  }
  static std::atomic<int>& threads() {
    static std::atomic<int> n{1};
    return n;
  }
};

// Calls f(begin, end) over [0, n) in blocks of `grain`. The calling thread has the first, so that what a call with a
// block for each thread left in a cache is there for the next; the others are claimed in order by whichever thread is
// free, so f must give the same result whoever runs it. An exception in any block is rethrown here once all are back.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  const int64_t blocks = (n + grain - 1) / grain;
  const unsigned team = static_cast<unsigned>(blocks < Pool::threads() ? blocks : Pool::threads().load());
  if (team <= 1 || Pool::entry() == nullptr) return f(0, n);
  struct Team {
    const F& f;
    int64_t n, grain;
    std::atomic<int64_t> next;
    std::thread::id caller;
    std::exception_ptr fault;
    std::mutex mutex;
  } shared{f, n, grain, grain, std::this_thread::get_id(), {}, {}};
  Pool::entry()(
      [](void* data) {
        Team& t = *static_cast<Team*>(data);
        try {
          int64_t begin = std::this_thread::get_id() == t.caller ? 0 : t.next.fetch_add(t.grain);
          for (; begin < t.n; begin = t.next.fetch_add(t.grain))
            t.f(begin, begin + t.grain < t.n ? begin + t.grain : t.n);
        } catch (...) {
          std::lock_guard<std::mutex> lock(t.mutex);
          t.fault = std::current_exception();
          t.next = t.n;
        }
      },
      &shared, team, 0);
  if (shared.fault) std::rethrow_exception(shared.fault);
}

}  // namespace flyk
