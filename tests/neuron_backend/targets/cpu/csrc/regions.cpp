// Parallel regions for test_thread_pool.py.

#include <unistd.h>

#include <atomic>

#include "omp.h"
#include "thread_pool.h"

namespace {

// Reads what the neighbour wrote before the last barrier, `times` times.
void pass_on(int shares, int times, int* values) {
  int others[64];
#pragma omp parallel num_threads(shares)
  {
    const int own = omp_get_thread_num(), next = (own + 1) % shares;
    for (int i = 0; i < times; ++i) {
      others[own] = values[next] + 1;
#pragma omp barrier
      values[own] = others[own];
#pragma omp barrier
    }
  }
}

}  // namespace

extern "C" {

// The threads that could take shares of the last region, beside the caller.
int helpers() { return decodekit::pool_3::pool.team.region.helpers; }

void set_threads(int count) { omp_set_num_threads(count); }

// The share that ran each of n iterations, and the number of shares.
int shares_of(int n, int wanted, int* shares) {
  int size = 0;
#pragma omp parallel num_threads(wanted)
  {
    if (omp_get_thread_num() == 0) size = omp_get_num_threads();
#pragma omp for schedule(static)
    for (int i = 0; i < n; ++i) shares[i] = omp_get_thread_num();
  }
  return size;
}

// Regions of torch's number of threads; returns whether each iteration ran once in every region.
bool count_regions(int regions, int n, int* counts) {
  for (int region = 0; region < regions; ++region) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; ++i) ++counts[i];
    for (int i = 0; i < n; ++i)
      if (counts[i] != region + 1) return false;
  }
  return true;
}

void rotate(int shares, int times, int* values) { pass_on(shares, times, values); }

// How often "single" blocks ran, and how many shares saw what they wrote.
int count_singles(int shares, int times, int* seen) {
  int ran = 0;
  std::atomic<int> agreed{0};
#pragma omp parallel num_threads(shares)
  for (int i = 0; i < times; ++i) {
#pragma omp single
    ++ran;
    agreed += ran == i + 1;
#pragma omp barrier
  }
  *seen = agreed;
  return ran;
}

// The largest number of shares of a region within a region.
int nested_shares(int shares) {
  std::atomic<int> most{0};
#pragma omp parallel num_threads(shares)
  {
    const int own = omp_get_thread_num();
#pragma omp parallel num_threads(shares)
    {
      if (omp_get_num_threads() > most) most = omp_get_num_threads();
#pragma omp barrier
    }
    if (omp_get_thread_num() != own || omp_get_num_threads() != shares) most = -1;
  }
  return most;
}

// The operating system's thread of each share, which takes a while.
void threads_of(int shares, int* threads) {
#pragma omp parallel num_threads(shares)
  {
    usleep(20000);
    threads[omp_get_thread_num()] = gettid();
  }
}

int shares_outside() { return omp_get_num_threads() + omp_get_thread_num(); }

}
