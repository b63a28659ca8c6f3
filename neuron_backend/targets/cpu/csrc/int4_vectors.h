// Sums of products of one group of int4 weights, with vector instructions.

#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "gemm.h"

namespace decodekit {

// Format of quantization/int4_linear.py: [blocks][in][32] bytes, each with two outputs 32 apart, and a scale
// and the value of integer 8 for each output's group of 32 inputs.

constexpr int GROUP = 32;
constexpr int BLOCK = 64;
constexpr int HALF = BLOCK / 2;

// nibble_sums: sums of one group of inputs, [COUNT][BLOCK], for COUNT rows of int8 terms, `in` apart.
//
// Pairs: the weights of one group as 16-bit integers, unpacked once for many rows. of[k / 2][v] are those of inputs k
// and k + 1, adjacent, for the outputs of vector v. add_products: adds their products by a pair of inputs to a vector.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define DECODEKIT_NIBBLES

// Terms whose sums are computed at a time: four vectors each, in registers.
constexpr int NIBBLE_SUMS = 4;

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

using IntegerVector = __m512i;

// Rows up to which unpacking takes longer than it saves, and rows whose sums are kept in registers.
constexpr int FEW_ROWS = 3;
constexpr int PAIR_ROWS = 4;

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

inline __m512i add_products(__m512i sum, const int32_t* weights, int32_t inputs) {
  return _mm512_dpwssd_epi32(sum, _mm512_load_si512(weights), _mm512_set1_epi32(inputs));
}

inline __m512 as_numbers(__m512i of) { return _mm512_cvtepi32_ps(of); }

#elif !defined(DECODEKIT_PORTABLE) && defined(__AVX2__)

// Four vectors each: 8 registers of 16.
constexpr int NIBBLE_SUMS = 2;

// The first of 8 outputs in each half of each of four vectors.
constexpr int ORDER[4][2] = {{0, 16}, {8, 24}, {HALF, HALF + 16}, {HALF + 8, HALF + 24}};

// Calls f(i, weights) for the weights of two inputs, the two adjacent per output, in ORDER.
template <class F>
inline __attribute__((always_inline)) void each_pair(const uint8_t* packed, F f) {
  const __m256i low = _mm256_set1_epi8(15);
  const __m256i first = _mm256_loadu_si256((const __m256i*)packed);
  const __m256i second = _mm256_loadu_si256((const __m256i*)(packed + HALF));
  fetch<1>(packed);
  const __m256i left = _mm256_unpacklo_epi8(first, second), right = _mm256_unpackhi_epi8(first, second);
  f(0, _mm256_and_si256(left, low));
  f(1, _mm256_and_si256(right, low));
  f(2, _mm256_and_si256(_mm256_srli_epi16(left, 4), low));
  f(3, _mm256_and_si256(_mm256_srli_epi16(right, 4), low));
}

// Inputs whose products by nibbles fit in 16 bits: 15 * 127 * 16 is 30,480.
constexpr int SHORT = 16;

// Sums of SHORT products, in ORDER.
template <std::size_t... I>
inline __attribute__((always_inline)) void short_sums(
    const int8_t* x, int64_t in, const uint8_t* packed, __m256i (&sum)[sizeof...(I)][4], std::index_sequence<I...>) {
  for (auto& term : sum) std::fill(std::begin(term), std::end(term), _mm256_setzero_si256());
  // Unrolled, GCC 12 keeps sums in memory.
#pragma GCC unroll 1
  for (int k = 0; k < SHORT; k += 2) {
    const auto pair = [=](std::size_t term) __attribute__((always_inline)) {
      int16_t two;
      std::memcpy(&two, x + term * in + k, sizeof two);
      return _mm256_set1_epi16(two);
    };
    const __m256i inputs[] = {pair(I)...};
    each_pair(packed + k * HALF, [&](int i, __m256i weights) __attribute__((always_inline)) {
      ((sum[I][i] = _mm256_add_epi16(sum[I][i], _mm256_maddubs_epi16(weights, inputs[I]))), ...);
    });
  }
}

template <int COUNT>
inline void nibble_sums(const int8_t* x, int64_t in, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  constexpr auto terms = std::make_index_sequence<COUNT>();
  __m256i first[COUNT][4], second[COUNT][4];
  short_sums(x, in, packed, first, terms);
  short_sums(x + SHORT, in, packed + SHORT * HALF, second, terms);
  for (int term = 0; term < COUNT; ++term)
    for (int i = 0; i < 4; ++i)
      for (int half = 0; half < 2; ++half) {
        const auto wide = [=](__m256i of) {
          return _mm256_cvtepi16_epi32(half ? _mm256_extracti128_si256(of, 1) : _mm256_castsi256_si128(of));
        };
        const __m256i sum = _mm256_add_epi32(wide(first[term][i]), wide(second[term][i]));
        _mm256_storeu_si256((__m256i*)(found[term] + ORDER[i][half]), sum);
      }
}

#ifdef DECODEKIT_AVX2
#define DECODEKIT_NIBBLE_PAIRS

using IntegerVector = __m256i;

constexpr int FEW_ROWS = 1;
constexpr int PAIR_ROWS = 3;

struct Pairs {
  alignas(32) int32_t of[GROUP / 2][8][8];

  explicit Pairs(const uint8_t* packed) {
    for (int k = 0; k < GROUP; k += 2)
      each_pair(packed + k * HALF, [&](int i, __m256i weights) {
        const auto store = [&](int half, __m128i bytes) {
          _mm256_store_si256((__m256i*)of[k / 2][ORDER[i][half] / 8], _mm256_cvtepu8_epi16(bytes));
        };
        store(0, _mm256_castsi256_si128(weights));
        store(1, _mm256_extracti128_si256(weights, 1));
      });
  }
};

inline __m256i add_products(__m256i sum, const int32_t* weights, int32_t inputs) {
  const __m256i of = _mm256_load_si256((const __m256i*)weights);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(of, _mm256_set1_epi32(inputs)));
  // Otherwise GCC 12 computes the products of all inputs first, and keeps them in memory.
  asm("" : "+x"(sum));
  return sum;
}

inline __m256 as_numbers(__m256i of) { return _mm256_cvtepi32_ps(of); }

#endif

#else

constexpr int NIBBLE_SUMS = 4;

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
