// Skinny GEMM: products of few rows by weights, bound by reading the weights once from memory.
//
//     y[row][n] = sum over k of x[row][k] * weight[n][k]
//
// The order of a row's sum does not depend on the number of rows, so that a verification of several
// columns is bit-identical to decoding column by column. This file holds what all weight formats share.

#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#if !defined(DECODEKIT_PORTABLE) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) \
    && defined(__AVX512VL__)
#define DECODEKIT_AVX512
#include <immintrin.h>
#endif

namespace decodekit {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint32_t;
using std::uint8_t;

// Rows whose sums are kept in registers at a time; further rows read the weights again from the L1 cache.
constexpr int ROWS_AT_ONCE = 8;

// Prefetch distance in bytes. Without prefetch, two threads of a Xeon read bfloat16 weights at 24 GB/s and
// int8 weights at 23; with 8 KiB, at 32 and 54.
constexpr int64_t AHEAD = 8192;

// Fewer products than this are done before a second thread has started.
constexpr int64_t WORTH_THREADS = 1 << 15;

inline void fetch_ahead(const void* weights) {
  __builtin_prefetch(static_cast<const char*>(weights) + AHEAD);
}

// Calls f with the number of rows as a constant; returns whether it is a known one.
template <class F, int... KNOWN>
inline bool with_rows(int64_t rows, std::integer_sequence<int, KNOWN...>, F f) {
  return ((rows == KNOWN && (f(std::integral_constant<int, KNOWN>()), true)) || ...);
}

// Calls f(n, count) for runs of up to AT_ONCE outputs, in parallel; count is a constant.
template <int AT_ONCE, class F>
void each_output(int64_t outputs, int64_t products, F f) {
  const int64_t whole = outputs / AT_ONCE;
#pragma omp parallel for schedule(static) if (products >= WORTH_THREADS)
  for (int64_t run = 0; run < whole; ++run) {
    f(run * AT_ONCE, std::integral_constant<int, AT_ONCE>());
  }
  for (int64_t n = whole * AT_ONCE; n < outputs; ++n) {
    f(n, std::integral_constant<int, 1>());
  }
}

// Calls f(first, count) for all rows, up to AT_ONCE at a time; count is a constant.
template <int ROWS, int AT_ONCE, int FIRST = 0, class F>
inline void each_row(F&& f) {
  constexpr int COUNT = std::min(ROWS - FIRST, AT_ONCE);
  f(FIRST, std::integral_constant<int, COUNT>());
  if constexpr (FIRST + COUNT < ROWS) {
    each_row<ROWS, AT_ONCE, FIRST + COUNT>(f);
  }
}

#ifdef DECODEKIT_AVX512

inline __m512 plus(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512i plus(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512 low_pairs(__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
inline __m512i low_pairs(__m512i a, __m512i b) { return _mm512_unpacklo_epi32(a, b); }
inline __m512 high_pairs(__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
inline __m512i high_pairs(__m512i a, __m512i b) { return _mm512_unpackhi_epi32(a, b); }
inline __m512i bits(__m512 a) { return _mm512_castps_si512(a); }
inline __m512i bits(__m512i a) { return a; }
inline void keep(float* to, __m512i a) { _mm_storeu_ps(to, _mm_castsi128_ps(_mm512_castsi512_si128(a))); }
inline void keep(int32_t* to, __m512i a) { _mm_storeu_si128((__m128i*)to, _mm512_castsi512_si128(a)); }

// Horizontal sums of four vectors: a third of the instructions of four single sums, and in the same order
// for each of the four.
template <class Vector>
inline Vector sums_of_four(const Vector (&of)[4]) {
  const Vector first = plus(low_pairs(of[0], of[1]), high_pairs(of[0], of[1]));
  const Vector second = plus(low_pairs(of[2], of[3]), high_pairs(of[2], of[3]));
  Vector sum = plus(
      (Vector)_mm512_unpacklo_epi64(bits(first), bits(second)),
      (Vector)_mm512_unpackhi_epi64(bits(first), bits(second)));
  sum = plus(sum, (Vector)_mm512_shuffle_i64x2(bits(sum), bits(sum), 0b01001110));
  return plus(sum, (Vector)_mm512_shuffle_i64x2(bits(sum), bits(sum), 0b10110001));
}

// Horizontal sums of COUNT vectors, to as many numbers.
template <int COUNT, class Vector, class Number>
inline void sum_each(const Vector* of, Number* found) {
  Number four[4];
  for (int i = 0; i < COUNT; i += 4) {
    Vector group[4];
    for (int j = 0; j < 4; ++j) group[j] = of[std::min(i + j, COUNT - 1)];
    keep(four, bits(sums_of_four(group)));
    for (int j = 0; j < 4 && i + j < COUNT; ++j) found[i + j] = four[j];
  }
}

#endif

}  // namespace decodekit
