// Sums of products by a block of int8 weights.

#pragma once

#include <cstring>
#include <utility>

#include "fixed_floats.h"
#include "gemm.h"
#include "int8_blocks.h"
#include "int8_digits.h"

namespace decodekit {

// The cache that weights are fetched to, see fetch(), for COUNT digits: one row of inputs has as many as float32.
template <int COUNT>
constexpr int LEVEL = COUNT > DIGITS<SPLIT_TERMS<float>> ? 2 : 1;

// block_sums: the sums of COUNT digits of a chunk for the outputs of a block, which begin with `starts`. x is
// [quads][COUNT][QUAD]. `ahead` bytes behind the weights are fetched.

#ifdef DECODEKIT_DIGITS_OF_8_BITS

// Digits whose sums are kept in registers: 24 of 32.
constexpr int DIGITS_AT_ONCE = 24;

// Neither inlined nor a loop, and with every index a constant: otherwise GCC 12 moves all sums from register to
// register in every step.
template <std::size_t... I>
__attribute__((noinline)) void block_sums_at(
    const Digit* x, const int32_t* starts, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES], std::index_sequence<I...>) {
  constexpr int COUNT = sizeof...(I);
  __m512i sum[COUNT];
  ((sum[I] = _mm512_set1_epi32(starts[I])), ...);
  for (int64_t quad = 0; quad < quads; ++quad) {
    const __m512i of = _mm512_loadu_si512(weights + quad * LINE);
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    const auto inputs = [=](std::size_t digit) {
      int32_t four;
      std::memcpy(&four, x + (quad * COUNT + digit) * QUAD, sizeof four);
      return _mm512_set1_epi32(four);
    };
    ((sum[I] = _mm512_dpbusd_epi32(sum[I], of, inputs(I))), ...);
  }
  (_mm512_storeu_si512(found[I], sum[I]), ...);
}

template <int COUNT>
inline void block_sums(
    const Digit* x, const int32_t* starts, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  block_sums_at(x, starts, weights, quads, ahead, found, std::make_index_sequence<COUNT>());
}

#elif !defined(DECODEKIT_PORTABLE) && defined(__AVX2__)

// Two vectors each: 10 registers of 16.
constexpr int DIGITS_AT_ONCE = 5;

// Every index is a constant, and the function not inlined, for the reasons above.
template <std::size_t... I>
__attribute__((noinline)) void block_sums_at(
    const Digit* x, const int32_t* starts, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES], std::index_sequence<I...>) {
  constexpr int COUNT = sizeof...(I);
  const __m256i low = _mm256_set1_epi16(0xff);
  __m256i sum[COUNT][2];
  ((sum[I][0] = sum[I][1] = _mm256_set1_epi32(starts[I])), ...);
  for (int64_t quad = 0; quad < quads; ++quad) {
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    // Of each four weights the first and third in lanes of 16 bits, and the second and fourth.
    const __m256i* const halves = (const __m256i*)(weights + quad * LINE);
    const __m256i left = _mm256_loadu_si256(halves), right = _mm256_loadu_si256(halves + 1);
    const __m256i even[2] = {_mm256_and_si256(left, low), _mm256_and_si256(right, low)};
    const __m256i odd[2] = {_mm256_srli_epi16(left, 8), _mm256_srli_epi16(right, 8)};
    const auto add = [=](std::size_t digit, __m256i (&to)[2]) __attribute__((always_inline)) {
      const auto pair = [=](int of) {
        int32_t two;
        std::memcpy(&two, x + (quad * COUNT + digit) * QUAD + 2 * of, sizeof two);
        return _mm256_set1_epi32(two);
      };
      const __m256i by_even = pair(0), by_odd = pair(1);
      to[0] = _mm256_add_epi32(to[0], _mm256_madd_epi16(even[0], by_even));
      to[1] = _mm256_add_epi32(to[1], _mm256_madd_epi16(even[1], by_even));
      to[0] = _mm256_add_epi32(to[0], _mm256_madd_epi16(odd[0], by_odd));
      to[1] = _mm256_add_epi32(to[1], _mm256_madd_epi16(odd[1], by_odd));
      // Otherwise GCC 12 reads the inputs of all digits first, and keeps sums in memory.
      asm volatile("" ::: "memory");
    };
    (add(I, sum[I]), ...);
  }
  const auto store = [=](std::size_t digit, const __m256i (&of)[2]) __attribute__((always_inline)) {
    _mm256_storeu_si256((__m256i*)found[digit], of[0]);
    _mm256_storeu_si256((__m256i*)found[digit] + 1, of[1]);
  };
  (store(I, sum[I]), ...);
}

template <int COUNT>
inline void block_sums(
    const Digit* x, const int32_t* starts, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  block_sums_at(x, starts, weights, quads, ahead, found, std::make_index_sequence<COUNT>());
}

#else

constexpr int DIGITS_AT_ONCE = 6;

template <int COUNT>
inline void block_sums(
    const Digit* x, const int32_t* starts, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  using Bits = Fixed<LANES>::Bits;
  // Unsigned, since sums with OFFSET may exceed 32 bits.
  Bits sum[COUNT];
  for (int digit = 0; digit < COUNT; ++digit) sum[digit] = Bits{} + static_cast<uint32_t>(starts[digit]);
  for (int64_t quad = 0; quad < quads; ++quad) {
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    Bits of;
    std::memcpy(&of, weights + quad * LINE, sizeof of);
    for (int i : {0, 2, 1, 3}) {
      const Bits weight = of & 255;
      of >>= 8;
      for (int digit = 0; digit < COUNT; ++digit)
        sum[digit] += weight * static_cast<uint32_t>(int32_t{x[(quad * COUNT + digit) * QUAD + i]});
    }
  }
  std::memcpy(found, sum, sizeof sum);
}

#endif

}  // namespace decodekit
