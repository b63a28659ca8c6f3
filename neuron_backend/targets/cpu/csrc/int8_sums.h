// Sums of products by a block of int8 weights.

#pragma once

#include <cstring>
#include <utility>

#include "fixed_floats.h"
#include "gemm.h"

namespace decodekit {

// Format of quantization/int8_blocks.py: blocks of LANES outputs; for each QUAD of inputs the weights of every output,
// which so lie in lanes of 32 bits. They are unsigned, OFFSET more than what they stand for.

constexpr int LANES = 16;
constexpr int QUAD = 4;
constexpr int LINE = LANES * QUAD;
constexpr int OFFSET = 128;

// The cache that weights are fetched to, see fetch(); one row of inputs has two or three terms.
template <int COUNT>
constexpr int LEVEL = COUNT > 3 ? 2 : 1;

// What OFFSET adds to the sum of a term's products, modulo 2^32 as that is.
inline uint32_t share_of(int32_t term_sum) { return static_cast<uint32_t>(term_sum) * OFFSET; }

// block_sums: the sums of COUNT terms for the outputs of a block. x is [quads][COUNT][QUAD]; `term_sums` are the sums of
// the terms. `ahead` bytes behind the weights are fetched.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)

// Terms whose sums are kept in registers: 24 of 32.
constexpr int TERMS_AT_ONCE = 24;

// Neither inlined nor a loop, and with every index a constant: otherwise GCC 12 moves all sums from register to
// register in every step.
template <std::size_t... I>
__attribute__((noinline)) void block_sums_at(
    const int8_t* x, const int32_t* term_sums, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES], std::index_sequence<I...>) {
  constexpr int COUNT = sizeof...(I);
  __m512i sum[COUNT];
  ((sum[I] = _mm512_set1_epi32(-share_of(term_sums[I]))), ...);
  for (int64_t quad = 0; quad < quads; ++quad) {
    const __m512i of = _mm512_loadu_si512(weights + quad * LINE);
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    const auto inputs = [=](std::size_t term) {
      int32_t four;
      std::memcpy(&four, x + (quad * COUNT + term) * QUAD, sizeof four);
      return _mm512_set1_epi32(four);
    };
    ((sum[I] = _mm512_dpbusd_epi32(sum[I], of, inputs(I))), ...);
  }
  (_mm512_storeu_si512(found[I], sum[I]), ...);
}

template <int COUNT>
inline void block_sums(
    const int8_t* x, const int32_t* term_sums, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  block_sums_at(x, term_sums, weights, quads, ahead, found, std::make_index_sequence<COUNT>());
}

#elif defined(__AVX2__) && !defined(DECODEKIT_PORTABLE)

// Two vectors each: 12 registers of 16.
constexpr int TERMS_AT_ONCE = 6;

template <int COUNT>
inline void block_sums(
    const int8_t* x, const int32_t* term_sums, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  const __m256i low = _mm256_set1_epi16(0xff);
  __m256i sum[COUNT][2];
  for (int term = 0; term < COUNT; ++term)
    sum[term][0] = sum[term][1] = _mm256_set1_epi32(-share_of(term_sums[term]));
  for (int64_t quad = 0; quad < quads; ++quad) {
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    // Of each four weights the first and third in lanes of 16 bits, and the second and fourth.
    __m256i even[2], odd[2];
    for (int half = 0; half < 2; ++half) {
      const __m256i of = _mm256_loadu_si256((const __m256i*)(weights + quad * LINE) + half);
      even[half] = _mm256_and_si256(of, low);
      odd[half] = _mm256_srli_epi16(of, 8);
    }
    for (int term = 0; term < COUNT; ++term) {
      int32_t four;
      std::memcpy(&four, x + (quad * COUNT + term) * QUAD, sizeof four);
      const __m256i inputs = _mm256_set1_epi32(four);
      const __m256i by_even = _mm256_srai_epi16(_mm256_slli_epi16(inputs, 8), 8);
      const __m256i by_odd = _mm256_srai_epi16(inputs, 8);
      for (int half = 0; half < 2; ++half) {
        const __m256i pairs = _mm256_add_epi32(
            _mm256_madd_epi16(even[half], by_even), _mm256_madd_epi16(odd[half], by_odd));
        sum[term][half] = _mm256_add_epi32(sum[term][half], pairs);
      }
    }
  }
  for (int term = 0; term < COUNT; ++term)
    for (int half = 0; half < 2; ++half) _mm256_storeu_si256((__m256i*)found[term] + half, sum[term][half]);
}

#else

constexpr int TERMS_AT_ONCE = 6;

template <int COUNT>
inline void block_sums(
    const int8_t* x, const int32_t* term_sums, const uint8_t* weights, int64_t quads, int64_t ahead,
    int32_t (*found)[LANES]) {
  using Bits = Fixed<LANES>::Bits;
  // Unsigned, since sums with OFFSET may exceed 32 bits before its share is subtracted.
  Bits sum[COUNT];
  for (int term = 0; term < COUNT; ++term) sum[term] = Bits{} - share_of(term_sums[term]);
  for (int64_t quad = 0; quad < quads; ++quad) {
    fetch<LEVEL<COUNT>>(weights + quad * LINE, ahead);
    Bits of;
    std::memcpy(&of, weights + quad * LINE, sizeof of);
    for (int i = 0; i < QUAD; ++i, of >>= 8)
      for (int term = 0; term < COUNT; ++term)
        sum[term] += (of & 255) * static_cast<uint32_t>(int32_t{x[(quad * COUNT + term) * QUAD + i]});
  }
  std::memcpy(found, sum, sizeof sum);
}

#endif

}  // namespace decodekit
