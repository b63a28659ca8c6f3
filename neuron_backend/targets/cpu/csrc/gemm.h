// Products of rows by weights, the same bits for any number of rows and threads.
//
//     y[row][n] = sum over k of x[row][k] * weight[n][k]
//
// The order of a sum depends on the weight's row alone: neither the number of rows, nor which rows are
// multiplied together, nor the thread changes it. So a column's logits are the same in a prompt, in a
// verification and decoded alone. This file holds what all weight formats share.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <omp.h>

#if !defined(DECODEKIT_PORTABLE) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) \
    && defined(__AVX512VL__)
#define DECODEKIT_AVX512
#elif !defined(DECODEKIT_PORTABLE) && defined(__AVX2__) && defined(__FMA__) && defined(CPU_CAPABILITY_AVX2)
#define DECODEKIT_AVX2
#endif
#if !defined(DECODEKIT_PORTABLE) && defined(__AVX2__)
#include <immintrin.h>
#endif

namespace decodekit {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

// Most outputs and rows whose sums are kept in registers together. Where outputs times rows exceed SUMS_AT_ONCE, of 32
// registers or of 16, half as many outputs are multiplied at a time.
constexpr int OUTPUTS_AT_ONCE = 4;
constexpr int ROWS_AT_ONCE = 6;
#ifdef DECODEKIT_AVX512
constexpr int SUMS_AT_ONCE = 24;
#else
constexpr int SUMS_AT_ONCE = 12;
#endif

// Outputs to multiply at a time by so many rows.
constexpr int outputs_at_once(int rows) {
  return rows * OUTPUTS_AT_ONCE <= SUMS_AT_ONCE ? OUTPUTS_AT_ONCE : OUTPUTS_AT_ONCE / 2;
}

// Outputs whose weights stay in a cache while many rows are multiplied by them.
constexpr int64_t PANEL = 32;

// Prefetch distance in bytes. Without prefetch, two threads of a Xeon read bfloat16 weights at 24 GB/s and
// int8 weights at 23; with 8 KiB, at 32 and 54. One thread of an AMD EPYC (Zen 4) reads bfloat16 weights at
// 12 GB/s without, and at 21 to 26 with it.
constexpr int64_t AHEAD = 8192;

// Bytes.
constexpr int CACHE_LINE = 64;

// Fewer products than this are done before a second thread has started.
constexpr int64_t WORTH_THREADS = 1 << 15;

// Weights are fetched in the order of their addresses, also where several short rows of them are read side by side: on
// Zen 5, one to six rows of inputs take 7.8 ms, with a distance of AHEAD in each row of weights 7.8 to 9.1. To the
// first-level cache for one row of inputs: on one thread of Zen 4 it takes 9 to 17 % less time than with prefetch to
// the second, on two 3 to 6 %. For more, whose inputs need it, to the second: on Zen 4, five rows take twice as long
// with the first. Inlined always: GCC 12 takes a function that only fetches for one without effect, and leaves out
// calls of it.
template <int LEVEL>
inline __attribute__((always_inline)) void fetch(const void* weights, int64_t ahead = AHEAD) {
  __builtin_prefetch(static_cast<const char*>(weights) + ahead, 0, 4 - LEVEL);
}

// Makes room for `count` numbers; memory that is there is not written.
template <class Vector>
inline void grow(Vector& vector, std::size_t count) {
  if (vector.size() < count) vector.resize(count);
}

// Calls f with `count`, 1 to MOST, as a constant.
template <int MOST, class F>
inline void with_count(int64_t count, F&& f) {
  if constexpr (MOST > 1) {
    if (count < MOST) return with_count<MOST - 1>(count, f);
  }
  f(std::integral_constant<int, MOST>());
}

// Calls f(first, count) for one of the parts of nearly equal size that rows are divided into; count, up to MOST, is a
// constant.
template <int MOST, class F>
inline void part_of_rows(int64_t rows, int64_t parts, int64_t part, F&& f) {
  const int64_t first = rows * part / parts, end = rows * (part + 1) / parts;
  with_count<MOST>(end - first, [&](auto count) { f(first, count); });
}

// Calls f(first, count) for all rows, in the fewest parts of up to MOST rows.
template <int MOST, class F>
inline void each_part_of_rows(int64_t rows, F&& f) {
  const int64_t parts = (rows + MOST - 1) / MOST;
  for (int64_t part = 0; part < parts; ++part) part_of_rows<MOST>(rows, parts, part, f);
}

// The same, in parallel if `in_threads` is set.
template <int MOST, class F>
inline void each_part_in_threads(int64_t rows, bool in_threads, F f) {
  const int64_t parts = (rows + MOST - 1) / MOST;
  if (parts == 1 || !in_threads) return each_part_of_rows<MOST>(rows, f);
#pragma omp parallel for schedule(static)
  for (int64_t part = 0; part < parts; ++part) part_of_rows<MOST>(rows, parts, part, f);
}

// Calls f(first, count) for all of a constant number of rows, in parts of MOST and the rest; both are constants.
template <int ROWS, int MOST, int FIRST = 0, class F>
inline void each_of(F&& f) {
  constexpr int COUNT = std::min(ROWS - FIRST, MOST);
  f(std::integral_constant<int, FIRST>(), std::integral_constant<int, COUNT>());
  if constexpr (FIRST + COUNT < ROWS) each_of<ROWS, MOST, FIRST + COUNT>(f);
}

// Calls f(n, end) for panels of up to PANEL outputs, in parallel; each thread has about as many outputs as the
// others, one after the other. All but the last panel are whole runs of OUTPUTS_AT_ONCE.
template <class F>
void each_panel(int64_t outputs, bool in_threads, F f) {
  const int64_t runs = (outputs + OUTPUTS_AT_ONCE - 1) / OUTPUTS_AT_ONCE;
  const int64_t parts = std::min<int64_t>(runs, in_threads ? omp_get_max_threads() : 1);
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t end = std::min(runs * (part + 1) / parts * OUTPUTS_AT_ONCE, outputs);
    for (int64_t n = runs * part / parts * OUTPUTS_AT_ONCE; n < end; n += PANEL) f(n, std::min(n + PANEL, end));
  }
}

// Calls f(n, outputs) for all runs of MOST outputs of a panel; `outputs`, MOST or 1, is a constant.
template <int MOST, class F>
inline void each_run(int64_t n, int64_t end, F&& f) {
  for (; n + MOST <= end; n += MOST) f(n, std::integral_constant<int, MOST>());
  for (; n < end; ++n) f(n, std::integral_constant<int, 1>());
}

}  // namespace decodekit
