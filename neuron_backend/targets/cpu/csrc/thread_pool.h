// Threads for the parallel regions of compiled programs.
//
// libgomp's threads wait for each other awake for milliseconds, so a forward stalls when another process runs
// on one of their cores. These sleep after some microseconds. A region consists of shares (OpenMP's thread
// numbers), and a thread that is ready takes the next one: the caller does not wait for a thread that has not
// begun, and results do not depend on who takes which share.

#pragma once

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <new>

#pragma GCC visibility push(hidden)

// Programs of one process share a pool by this name, which must change with the layout of Pool.
namespace decodekit::pool_3 {

// How long a thread waits awake: longer than any wait on a quiet machine.
constexpr auto AWAKE = std::chrono::microseconds(50);

// Regions until threads that could not be made are tried again, which takes as long as a small region.
constexpr int REFUSED = 1000;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits awake until ready(); returns whether it was, before AWAKE was over.
template <class Ready>
bool spin(Ready ready) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + AWAKE;
  do {
    for (int i = 0; i < 16; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
  } while (Clock::now() < end);
  return false;
}

// Changes that threads sleep until.
class Signal {
 public:
  // To be called after the change.
  void raise() {
    changes.fetch_add(1);
    if (sleepers.load() > 0) call(FUTEX_WAKE_PRIVATE, INT_MAX);
  }

  template <class Ready>
  void sleep_until(Ready ready) {
    sleepers.fetch_add(1);
    for (;;) {
      const uint32_t seen = changes.load();
      if (ready()) break;
      call(FUTEX_WAIT_PRIVATE, seen);
    }
    sleepers.fetch_sub(1);
  }

 private:
  alignas(64) std::atomic<uint32_t> changes{0};
  std::atomic<int> sleepers{0};

  void call(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&changes), operation, value, nullptr, nullptr, 0);
  }
};

// What a thread reads before it takes a share, in one word, so that no share of an ended region is taken.
struct Ticket {
  static constexpr int BITS = 12, MOST = (1 << BITS) - 1;
  uint64_t bits;

  // Share 0 is taken.
  static Ticket of(uint64_t region, int helpers, int shares) {
    return {((region << BITS | helpers) << BITS | shares) << BITS | 1};
  }
  int taken() const { return bits & MOST; }
  int shares() const { return bits >> BITS & MOST; }
  int helpers() const { return bits >> 2 * BITS & MOST; }
  uint64_t region() const { return bits >> 3 * BITS; }
  bool is_open(int thread) const { return taken() < shares() && thread < helpers(); }
};

// The thread that begins a region. The others are numbered from 0.
constexpr int CALLER = -1;

struct Team;

struct Region {
  void (*function)(void*);
  void* data;
  int shares;
  int helpers;  // Threads that may take shares, beside the caller.
  void (*run)(Team& team, int share, int thread);  // Runs a share, in the program of the region.
};

// The progress of a region.
struct Team {
  Region region{};
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<int> finished{0};
  std::atomic<int> arrived{0};
  std::atomic<uint32_t> barriers{0};
  std::atomic<int> singles{0};
  Signal advanced;

  // Share 0 is the caller's.
  void begin(const Region& next) {
    region = next;
    finished = arrived = singles = 0;
    ticket = Ticket::of(Ticket{ticket}.region() + 1, next.helpers, next.shares).bits;
  }

  bool has_shares_left() const { return has_shares(CALLER); }
  bool has_shares(int thread) const { return Ticket{ticket}.is_open(thread); }
  bool is_finished() const { return finished == region.shares; }

  // The next share that no thread has taken, or -1.
  int next_share(int thread) {
    Ticket seen{ticket};
    while (seen.is_open(thread))
      if (ticket.compare_exchange_weak(seen.bits, seen.bits + 1)) return seen.taken();
    return -1;
  }

  void finish_share() {
    // Read before: afterwards another region may begin.
    const int shares = region.shares;
    if (finished.fetch_add(1) + 1 == shares) advanced.raise();
  }

  // Arrives at a barrier; returns whether all shares have.
  bool arrive() {
    if (arrived.fetch_add(1) + 1 < region.shares) return false;
    arrived = 0;
    barriers.fetch_add(1);
    advanced.raise();
    return true;
  }
};

// Works for one region at a time. Constant-initialised and never destroyed, since its threads never end.
struct Pool {
  std::atomic<bool> taken{false};
  Team team;
  Signal begun;
  int threads = 0;
  int until_retry = 0;  // Regions.
  bool handles_fork = false;
  bool forked = false;

  // For a child that is forked before or after the first region.
  void handle_forks();

  // With as many helpers as there are threads, so that no thread waits for one that could not be made.
  void begin(Region region) {
    ensure_threads(region.helpers);
    region.helpers = std::min(region.helpers, threads);
    team.begin(region);
    begun.raise();
  }

  void work(int thread) {
    const auto ready = [&] { return team.has_shares(thread); };
    for (;;) {
      if (!spin(ready)) begun.sleep_until(ready);
      const int share = team.next_share(thread);
      if (share >= 0) team.region.run(team, share, thread);
    }
  }

 private:
  void ensure_threads(int count);
};

// Visible, so that the dynamic linker unites the pools of all programs (STB_GNU_UNIQUE).
__attribute__((visibility("default"))) inline Pool pool;

inline void* work_as(void* thread) {
  pool.work(static_cast<int>(reinterpret_cast<intptr_t>(thread)));
  return nullptr;
}

// A forked child has none of the threads.
inline void forget_threads() {
  new (&pool) Pool;
  pool.forked = true;
}

// Keeps this program's code, which its threads run, loaded for ever.
inline void stay_loaded() {
  Dl_info found;
  if (dladdr(reinterpret_cast<void*>(&work_as), &found))
    dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

inline void Pool::handle_forks() {
  if (handles_fork) return;
  stay_loaded();
  handles_fork = pthread_atfork(nullptr, nullptr, forget_threads) == 0;
}

inline void Pool::ensure_threads(int count) {
  if (threads >= count || until_retry-- > 0) return;
  // Again, since the pool may be that of another program.
  stay_loaded();
  handle_forks();
  until_retry = 0;
  for (; threads < count; ++threads) {
    pthread_t made;
    const auto number = reinterpret_cast<void*>(static_cast<intptr_t>(threads));
    if (pthread_create(&made, nullptr, work_as, number)) {
      until_retry = REFUSED;
      return;
    }
    pthread_detach(made);
  }
}

}  // namespace decodekit::pool_3

#pragma GCC visibility pop
