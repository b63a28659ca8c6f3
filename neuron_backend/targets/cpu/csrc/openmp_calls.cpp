// The functions that g++ calls for OpenMP's parallel regions, defined within a program and run by thread_pool.h.
//
// Defined is what inductor's loops and our kernels need: parallel regions with static schedules, barriers and
// "single". A thread that waits at a barrier runs shares that no thread has taken, each on a stack of its own.

#include <sched.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "thread_pool.h"

// libgomp's, which keeps torch's setting.
extern "C" int omp_get_max_threads();

// libgomp's as well; of OpenMP 5.0, and so missing from old ones.
extern "C" int omp_pause_resource_all(int) __attribute__((weak));

#pragma GCC visibility push(hidden)

namespace {

using namespace decodekit::pool_3;

// Reserved, and used as far as it is touched.
constexpr size_t STACK = size_t(8) << 20;

// A share in progress on this thread.
struct Share {
  int number = 0;
  int singles = 0;
  bool ended = false;
  uint32_t passed = 0;  // Barriers before the one that it waits at.
  ucontext_t context;
  void* stack = nullptr;
};

void run_started();

// The shares of one region that a thread has taken: the first on its own stack, which resumes the others.
class Crew {
 public:
  Crew() = default;
  Crew(Team& of, int share, int on) : team(&of), thread(on) { first.number = share; }

  ~Crew() {
    for (Share* share : others) {
      munmap(share->stack, STACK);
      delete share;
    }
  }

  int share() const { return current->number; }
  int size() const { return team ? team->region.shares : 1; }

  void work() {
    run_share();
    if (thread != CALLER) return wait([&] { return all_ended(); });
    // Threads get a moment to begin before the caller takes their shares.
    while (team->has_shares_left()) {
      if (team->region.helpers && spin([&] { return !team->has_shares_left(); })) break;
      const int next = team->next_share(thread);
      if (next < 0) break;
      begin_share(first, next);
      run_share();
    }
    wait([&] { return team->is_finished(); });
  }

  void run_share() {
    team->region.function(team->region.data);
    current->ended = true;
    team->finish_share();
  }

  void barrier() {
    if (!team) return;
    Share& own = *current;
    own.passed = team->barriers;
    if (team->arrive()) return;
    if (&own == &first) return wait([&] { return !is_waiting(own); });
    while (is_waiting(own)) leave();
  }

  bool single() {
    int before = current->singles++;
    return !team || team->singles.compare_exchange_strong(before, before + 1);
  }

  // From a further share, back to the first.
  void leave() {
    Share& own = *std::exchange(current, &first);
    swapcontext(&own.context, &first.context);
  }

 private:
  Team* team = nullptr;  // None: a region of one share.
  int thread = CALLER;
  Share first;
  std::vector<Share*> others;
  Share* current = &first;

  bool is_waiting(const Share& share) const { return share.passed == team->barriers; }
  bool all_ended() const {
    return std::all_of(others.begin(), others.end(), [](const Share* share) { return share->ended; });
  }

  Share* resumable() const {
    for (Share* share : others)
      if (!share->ended && !is_waiting(*share)) return share;
    return nullptr;
  }

  // Runs other shares on this thread until ready().
  template <class Ready>
  void wait(Ready ready) {
    const auto can_proceed = [&] { return ready() || resumable(); };
    while (!ready()) {
      if (Share* share = resumable()) {
        resume(*share);
      } else if (!team->region.helpers || !spin(can_proceed)) {
        const int next = team->next_share(thread);
        if (next >= 0) {
          start(next);
        } else {
          team->advanced.sleep_until(can_proceed);
        }
      }
    }
  }

  static void begin_share(Share& share, int number) {
    share.number = number;
    share.singles = 0;
    share.ended = false;
  }

  void start(int number) {
    Share& share = *others.emplace_back(new Share);
    begin_share(share, number);
    share.stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (share.stack == MAP_FAILED || getcontext(&share.context)) std::abort();
    share.context.uc_stack.ss_sp = share.stack;
    share.context.uc_stack.ss_size = STACK;
    share.context.uc_link = nullptr;
    makecontext(&share.context, run_started, 0);
    resume(share);
  }

  void resume(Share& share) {
    current = &share;
    swapcontext(&first.context, &share.context);
  }
};

// Of the region that this thread works for.
thread_local Crew* crew = nullptr;

void run_started() {
  crew->run_share();
  crew->leave();
}

void run(Team& team, int share, int thread) {
  Crew own(team, share, thread);
  Crew* const outer = std::exchange(crew, &own);
  own.work();
  crew = outer;
}

// When the program is loaded: libgomp may have threads of torch's in the parent before a region of ours begins.
__attribute__((constructor)) void handle_forks() { pool.handle_forks(); }

int processors() {
  static const int count = [] {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
  }();
  return count;
}

// libgomp's threads wait awake for milliseconds after a parallel region of torch's, such as one of sampling. Where
// there are too few processors for them and ours, those of this thread are let go: forwards of two threads on two
// processors took 18 ms after them rather than 11, and libgomp starts them again in a tenth of a millisecond.
// Not in a forked child, where libgomp would wait for those of its parent for ever.
void dismiss_awake_threads(int threads) {
  constexpr int SOFT = 1;
  if (!omp_pause_resource_all || pool.forked) return;
  if (2 * threads - 1 > processors()) omp_pause_resource_all(SOFT);
}

void run_alone(void (*function)(void*), void* data) {
  Crew own;
  Crew* const outer = std::exchange(crew, &own);
  function(data);
  crew = outer;
}

}  // namespace

extern "C" {

int omp_get_thread_num() { return crew ? crew->share() : 0; }
int omp_get_num_threads() { return crew ? crew->size() : 1; }
int omp_in_parallel() { return omp_get_num_threads() > 1; }
bool GOMP_single_start() { return !crew || crew->single(); }

void GOMP_barrier() {
  if (crew) crew->barrier();
}

// As many shares as wanted, 0 for the number of threads; nested regions have one.
void GOMP_parallel(void (*function)(void*), void* data, unsigned wanted, unsigned) {
  if (crew || wanted == 1) return run_alone(function, data);
  const int threads = std::min(omp_get_max_threads(), Ticket::MOST);
  const int shares = wanted ? std::min<int>(wanted, Ticket::MOST) : threads;
  if (shares == 1) return run_alone(function, data);
  const Region region{function, data, shares, std::min(shares, threads) - 1, run};
  if (region.helpers && !pool.taken.exchange(true)) {
    dismiss_awake_threads(threads);
    pool.begin(region);
    run(pool.team, 0, CALLER);
    pool.taken = false;
  } else {
    // Another thread's region has the pool.
    Team team;
    team.begin({function, data, shares, 0, run});
    run(team, 0, CALLER);
  }
}

}
