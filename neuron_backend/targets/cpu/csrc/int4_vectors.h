// Sums of products of one group of int4 weights, with vector instructions.

#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "float_vectors.h"
#include "gemm.h"

namespace decodekit {

// Format of quantization/int4_linear.py: [blocks][in][32] bytes, each with two outputs 32 apart, and a scale
// and the value of integer 8 for each output's group of 32 inputs.

constexpr int GROUP = 32;
constexpr int BLOCK = 64;
constexpr int HALF = BLOCK / 2;

// NibbleDigit: an input is given as its int8 terms, or as digits of 16 bits, which are two terms each.
//
// nibble_sums: sums of one group of inputs, [COUNT][BLOCK], for COUNT rows of digits, `in` apart.
//
// Pairs: the weights of one group as 16-bit integers, unpacked once for many rows. of[k / 2][v] are those of inputs k
// and k + 1, adjacent, for the outputs of vector v. add_products: adds their products by a pair of inputs to a vector.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define DECODEKIT_NIBBLES

using NibbleDigit = int8_t;

// Digits whose sums are computed at a time: four vectors each, in registers.
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

inline Floats as_numbers(__m512i of) { return _mm512_cvtepi32_ps(of); }

#elif !defined(DECODEKIT_PORTABLE) && defined(__AVX2__)

using NibbleDigit = int16_t;

// Four sums each of a vector of outputs: 8 registers of 16.
constexpr int NIBBLE_SUMS = 2;

// The weights of four inputs, [8 outputs][4]: those of inputs 0, 2, 1 and 3, each with the weight of an output HALF
// further in its upper half. Four outputs are adjacent, the other four are 16 further.
using Quads = __m256i[2];

// Quads 2 * PART and the next of four. Each part fetches half of the weights that are read later.
template <int PART>
inline __attribute__((always_inline)) void load_quads(const uint8_t* packed, Quads& quads) {
  const auto row = [=](int k) { return _mm256_loadu_si256((const __m256i*)(packed + k * HALF)); };
  const auto half = [](__m256i a, __m256i b) { return PART ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b); };
  const __m256i even = half(row(0), row(2)), odd = half(row(1), row(3));
  fetch<1>(packed + 2 * PART * HALF);
  quads[0] = _mm256_unpacklo_epi16(even, odd);
  quads[1] = _mm256_unpackhi_epi16(even, odd);
}

// Vectors of eight adjacent outputs from two of quads: the lower ones, and those 16 further.
inline __m256i lower(__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x20); }
inline __m256i upper(__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x31); }

// Sums for the 32 outputs of a PART. Those of weights with an output HALF further in their upper halves are `both`.
template <int PART, std::size_t... I>
__attribute__((always_inline)) inline void part_sums(
    const int16_t* x, int64_t in, const uint8_t* packed, int32_t (*found)[BLOCK], std::index_sequence<I...>) {
  const __m256i bytes = _mm256_set1_epi16(0xff), nibbles = _mm256_set1_epi16(0xf);
  __m256i both[sizeof...(I)][2], low[sizeof...(I)][2];
  ((both[I][0] = both[I][1] = low[I][0] = low[I][1] = _mm256_setzero_si256()), ...);
#pragma GCC unroll 1
  for (int k = 0; k < GROUP; k += 4) {
    Quads quads;
    load_quads<PART>(packed + k * HALF, quads);
    const auto add = [=](int first, __m256i weights, int v, auto& to) __attribute__((always_inline)) {
      const auto pair = [=](std::size_t digit) __attribute__((always_inline)) {
        int32_t two;
        std::memcpy(&two, x + digit * in + k + first, sizeof two);
        return _mm256_set1_epi32(two);
      };
      ((to[I][v] = _mm256_add_epi32(to[I][v], _mm256_madd_epi16(weights, pair(I)))), ...);
    };
    for (int v = 0; v < 2; ++v) {
      const __m256i first = _mm256_and_si256(quads[v], bytes), second = _mm256_srli_epi16(quads[v], 8);
      add(0, first, v, both);
      add(0, _mm256_and_si256(quads[v], nibbles), v, low);
      add(2, second, v, both);
      add(2, _mm256_and_si256(second, nibbles), v, low);
    }
  }
  const auto store = [=](std::size_t digit, const __m256i (&both)[2], const __m256i (&low)[2]) {
    const auto put = [=](int output, __m256i sums) { _mm256_storeu_si256((__m256i*)(found[digit] + output), sums); };
    const auto high = [&](int v) { return _mm256_srai_epi32(_mm256_sub_epi32(both[v], low[v]), 4); };
    put(8 * PART, lower(low[0], low[1]));
    put(8 * PART + 16, upper(low[0], low[1]));
    put(8 * PART + HALF, lower(high(0), high(1)));
    put(8 * PART + HALF + 16, upper(high(0), high(1)));
  };
  (store(I, both[I], low[I]), ...);
}

template <int COUNT>
__attribute__((noinline)) void nibble_sums(
    const int16_t* x, int64_t in, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  part_sums<0>(x, in, packed, found, std::make_index_sequence<COUNT>());
  part_sums<1>(x, in, packed, found, std::make_index_sequence<COUNT>());
}

#ifdef DECODEKIT_AVX2
#define DECODEKIT_NIBBLE_PAIRS

using IntegerVector = __m256i;

constexpr int FEW_ROWS = 2;
constexpr int PAIR_ROWS = 3;

struct Pairs {
  alignas(32) int32_t of[GROUP / 2][8][8];

  explicit Pairs(const uint8_t* packed) {
    for (int k = 0; k < GROUP; k += 4) {
      unpack<0>(packed, k);
      unpack<1>(packed, k);
    }
  }

 private:
  template <int PART>
  void unpack(const uint8_t* packed, int k) {
    Quads quads;
    load_quads<PART>(packed + k * HALF, quads);
    unpack(k, PART, lower(quads[0], quads[1]));
    unpack(k, PART + 2, upper(quads[0], quads[1]));
  }

  void unpack(int k, int vector, __m256i quads) {
    const auto put = [=, this](int pair, int v, __m256i nibbles) {
      _mm256_store_si256((__m256i*)of[k / 2 + pair][v], _mm256_and_si256(nibbles, _mm256_set1_epi16(0xf)));
    };
    put(0, vector, quads);
    put(0, vector + 4, _mm256_srli_epi16(quads, 4));
    put(1, vector, _mm256_srli_epi16(quads, 8));
    put(1, vector + 4, _mm256_srli_epi16(quads, 12));
  }
};

inline __m256i add_products(__m256i sum, const int32_t* weights, int32_t inputs) {
  const __m256i of = _mm256_load_si256((const __m256i*)weights);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(of, _mm256_set1_epi32(inputs)));
  // Otherwise GCC 12 computes the products of all inputs first, and keeps them in memory.
  asm("" : "+x"(sum));
  return sum;
}

inline Floats as_numbers(__m256i of) { return _mm256_cvtepi32_ps(of); }

#endif

#else

using NibbleDigit = int8_t;

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
