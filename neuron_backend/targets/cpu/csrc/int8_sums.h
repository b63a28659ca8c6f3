// Sums of products by int8 weights, [out][in], for few terms: four outputs at a time.

#pragma once

#include <algorithm>
#include <utility>

#include "gemm.h"

namespace decodekit {

// Bytes of one vector of split inputs.
constexpr int64_t RUN = 64;

// Terms that four outputs' weights are multiplied by while they are read; with more, rearranging weights once for all
// rows (int8_panel.h) is faster.
constexpr int FEW_TERMS = 18;

// integer_sums: the sums of COUNT terms for up to four outputs.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)
#define DECODEKIT_VNNI

// The instruction takes unsigned inputs, so 128 is added to each, and its share subtracted from the sums.
constexpr int INPUT_OFFSET = 128;

// The bytes of a vector that are weights, of those `left`.
inline __mmask64 kept_bytes(int64_t left) { return left >= RUN ? ~0ull : (1ull << left) - 1; }

// Rearranges the weights of four outputs: vector i gets bytes 16 i to 16 i + 15 of each, one output after the other.
inline void interleave(const __m512i (&rows)[4], __m512i (&columns)[4]) {
  const auto halves = [&](auto which, int first) {
    return _mm512_shuffle_i64x2(rows[first], rows[first + 1], which());
  };
  const std::integral_constant<int, 0b01000100> low;
  const std::integral_constant<int, 0b11101110> high;
  const __m512i begin[] = {halves(low, 0), halves(low, 2)}, end[] = {halves(high, 0), halves(high, 2)};
  columns[0] = _mm512_shuffle_i64x2(begin[0], begin[1], 0b10001000);
  columns[1] = _mm512_shuffle_i64x2(begin[0], begin[1], 0b11011101);
  columns[2] = _mm512_shuffle_i64x2(end[0], end[1], 0b10001000);
  columns[3] = _mm512_shuffle_i64x2(end[0], end[1], 0b11011101);
}

// Of four terms the sums of each output's four lanes: [term][output].
inline __m512i sums_of_outputs(const __m512i (&of)[4]) {
  const __m512i first = plus(low_pairs(of[0], of[1]), high_pairs(of[0], of[1]));
  const __m512i second = plus(low_pairs(of[2], of[3]), high_pairs(of[2], of[3]));
  const __m512i sums = plus(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
  const __m512i by_term = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(by_term, sums);
}

// With every index a constant: GCC 12 moves the sums of an array from register to register in every step.
template <std::size_t... I>
inline void integer_sums_at(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int outputs,
    int32_t (*found)[OUTPUTS_AT_ONCE], std::index_sequence<I...>) {
  constexpr int COUNT = sizeof...(I), LAST = COUNT - 1;
  const __m512i one = _mm512_set1_epi8(1);
  __m512i sum[COUNT], share = _mm512_setzero_si512();
  ((sum[I] = _mm512_setzero_si512()), ...);
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = kept_bytes(in - k);
    __m512i rows[OUTPUTS_AT_ONCE], columns[OUTPUTS_AT_ONCE];
    for (int n = 0; n < OUTPUTS_AT_ONCE; ++n) {
      const int8_t* const from = weights + std::min(n, outputs - 1) * in + k;
      rows[n] = _mm512_maskz_loadu_epi8(kept, from);
      fetch_ahead(from);
    }
    interleave(rows, columns);
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const auto inputs = [=](std::size_t term) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)(x + term * padded + k + 16 * part)));
      };
      share = _mm512_dpbusd_epi32(share, one, columns[part]);
      ((sum[I] = _mm512_dpbusd_epi32(sum[I], inputs(I), columns[part])), ...);
    }
  }
  share = _mm512_slli_epi32(share, 7);
  ((sum[I] = _mm512_sub_epi32(sum[I], share)), ...);
  each_of<COUNT, 4>([&](auto first, auto count) __attribute__((always_inline)) {
    constexpr int FIRST = first();
    const __m512i sums = sums_of_outputs(
        {sum[FIRST], sum[std::min(FIRST + 1, LAST)], sum[std::min(FIRST + 2, LAST)], sum[std::min(FIRST + 3, LAST)]});
    constexpr uint32_t KEPT = (1u << count() * OUTPUTS_AT_ONCE) - 1;
    _mm512_mask_storeu_epi32(found[FIRST], KEPT, sums);
  });
}

template <int COUNT>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int outputs,
    int32_t (*found)[OUTPUTS_AT_ONCE]) {
  integer_sums_at(x, padded, weights, in, outputs, found, std::make_index_sequence<COUNT>());
}

#else

constexpr int INPUT_OFFSET = 0;

template <int COUNT>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int outputs,
    int32_t (*found)[OUTPUTS_AT_ONCE]) {
  for (int n = 0; n < outputs; ++n) {
    for (int row = 0; row < COUNT; ++row) {
      int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < in; ++k)
        sum += static_cast<int32_t>(weights[n * in + k]) * static_cast<int32_t>(x[row * padded + k]);
      found[row][n] = sum;
    }
  }
}

#endif

}  // namespace decodekit
