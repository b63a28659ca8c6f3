// Sums of products of one group of int4 weights, with vector instructions.

#pragma once

#include <algorithm>

#include "gemm.h"

namespace decodekit {

// Format of quantization/int4_linear.py: [blocks][in][32] bytes, each with two outputs 32 apart, and a scale
// and the value of integer 8 for each output's group of 32 inputs.

constexpr int GROUP = 32;
constexpr int BLOCK = 64;
constexpr int HALF = BLOCK / 2;

// Sums of terms that are computed at a time: four vectors each, in registers.
constexpr int NIBBLE_SUMS = 4;

// nibble_sums: sums of one group of inputs, [COUNT][BLOCK], for COUNT rows of int8 terms, `in` apart.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define DECODEKIT_NIBBLES

// Calls f(part, weights) for four inputs; `weights` are those of 16 outputs, four inputs adjacent per output.
template <class F>
inline void each_part(const uint8_t* packed, F f) {
  alignas(64) static constexpr auto ORDER = [] {
    struct { uint8_t of[2][64]; } order{};
    for (int half = 0; half < 2; ++half)
      for (int lane = 0; lane < 64; ++lane) order.of[half][lane] = lane % 4 * HALF + half * 16 + lane / 4;
    return order;
  }();
  const __m512i low = _mm512_set1_epi8(15);
  const __m512i first = _mm512_loadu_si512(packed), second = _mm512_loadu_si512(packed + 2 * HALF);
  // To the first level for any number of rows, since they share what is unpacked.
  fetch<1>(packed);
  fetch<1>(packed + 2 * HALF);
  for (int half = 0; half < 2; ++half) {
    const __m512i both = _mm512_permutex2var_epi8(first, _mm512_load_si512(ORDER.of[half]), second);
    f(half, _mm512_and_si512(both, low));
    f(half + 2, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

template <int COUNT>
inline void nibble_sums(const int8_t* x, int64_t in, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  __m512i sum[COUNT][4];
  for (auto& row : sum) std::fill(std::begin(row), std::end(row), _mm512_setzero_si512());
  for (int k = 0; k < GROUP; k += 4) {
    each_part(packed + k * HALF, [&](int part, __m512i weights) {
      for (int row = 0; row < COUNT; ++row) {
        int32_t four;
        __builtin_memcpy(&four, x + row * in + k, sizeof four);
        sum[row][part] = _mm512_dpbusd_epi32(sum[row][part], weights, _mm512_set1_epi32(four));
      }
    });
  }
  for (int row = 0; row < COUNT; ++row)
    for (int part = 0; part < 4; ++part) _mm512_storeu_si512(found[row] + part * 16, sum[row][part]);
}

#define DECODEKIT_NIBBLE_PAIRS

// The weights of one group as 16-bit integers, unpacked once for many rows: for each pair of inputs those of 16
// outputs in each of four vectors, the two adjacent.
struct Pairs {
  alignas(64) int32_t of[GROUP / 2][4][16];

  explicit Pairs(const uint8_t* packed) {
    const __m512i low = _mm512_set1_epi32(0xff), second = _mm512_set1_epi32(0xff0000);
    for (int k = 0; k < GROUP; k += 4)
      each_part(packed + k * HALF, [&](int part, __m512i four) {
        const auto pair = [&](__m512i first_byte, __m512i second_byte) {
          return _mm512_or_si512(_mm512_and_si512(first_byte, low), _mm512_and_si512(second_byte, second));
        };
        _mm512_store_si512(of[k / 2][part], pair(four, _mm512_slli_epi32(four, 8)));
        _mm512_store_si512(
            of[k / 2 + 1][part], pair(_mm512_srli_epi32(four, 16), _mm512_srli_epi32(four, 8)));
      });
  }
};

#else

template <int COUNT>
inline void nibble_sums(const int8_t* x, int64_t in, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  for (int row = 0; row < COUNT; ++row) {
    std::fill_n(found[row], BLOCK, 0);
    for (int k = 0; k < GROUP; ++k) {
      const int32_t input = x[row * in + k];
#pragma omp simd
      for (int n = 0; n < HALF; ++n) {
        found[row][n] += input * (packed[k * HALF + n] & 15);
        found[row][n + HALF] += input * (packed[k * HALF + n] >> 4);
      }
    }
  }
}

#endif

}  // namespace decodekit
