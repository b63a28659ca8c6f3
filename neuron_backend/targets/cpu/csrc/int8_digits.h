// Inputs as products by int8 weights read them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gemm.h"
#include "int8_blocks.h"
#include "int8_split.h"

namespace decodekit {

// The int8 terms of an input are joined to digits of one or two terms each, most significant first; a digit is worth
// BASE of the next. Each is one more row of a product of integers.
//
// The sums of products of a chunk of CHUNK inputs by a digit fit in 32 bits. For ROWS rows, a chunk has the digits
// [quads][ROWS * DIGITS][QUAD], and what the sums of each begin with, so that OFFSET adds nothing.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)
#define DECODEKIT_DIGITS_OF_8_BITS

// A chunk is a whole row, of at most MOST_INPUTS in quantization/int8_linear.py.
using Digit = int8_t;
constexpr int64_t CHUNK = int64_t{1} << 40;

template <int TERMS>
constexpr int DIGITS = TERMS;

#else

// A digit is two terms: its product by weights of 16 bits takes as long as one term's.
using Digit = int16_t;
constexpr int64_t CHUNK = 512;

template <int TERMS>
constexpr int DIGITS = (TERMS + 1) / 2;

#endif

// Chunks of a row of `in` inputs, at least one.
inline int64_t chunks_of(int64_t in) { return std::max<int64_t>(1, (in + CHUNK - 1) / CHUNK); }

#ifdef DECODEKIT_DIGITS_OF_8_BITS

// Lays the terms [ROWS][TERMS][in] to `to`, and what sums of them begin with to `starts`, [chunks][ROWS * DIGITS].
template <int ROWS, int TERMS>
inline void lay_digits(const int8_t* terms, const int32_t* term_sums, int64_t in, Digit* to, int32_t* starts) {
  constexpr int COUNT = ROWS * TERMS;
  for (int64_t k = 0; k < in; k += QUAD)
    for (int term = 0; term < COUNT; ++term) std::memcpy(to + k * COUNT + term * QUAD, terms + term * in + k, QUAD);
  for (int term = 0; term < COUNT; ++term) starts[term] = -share_of(term_sums[term]);
}

#else

// Lays the terms [ROWS][TERMS][in] to `to`, and what sums of them begin with to `starts`, [chunks][ROWS * DIGITS]. The
// second and third input of a quad change places: weights are multiplied as those of even and of odd inputs.
template <int ROWS, int TERMS>
inline void lay_digits(const int8_t* terms, const int32_t*, int64_t in, Digit* to, int32_t* starts) {
  constexpr int COUNT = ROWS * DIGITS<TERMS>;
  Digit joined[CHUNK];
  for (int64_t begin = 0; begin < in; begin += CHUNK, starts += COUNT) {
    const int64_t count = std::min(CHUNK, in - begin);
    for (int digit = 0; digit < COUNT; ++digit) {
      const int row = digit / DIGITS<TERMS>, term = digit % DIGITS<TERMS> * 2;
      const int8_t* const first = terms + (row * TERMS + term) * in + begin;
      const int32_t sum =
          term + 1 < TERMS ? join_terms(first, first + in, count, joined) : widen_terms(first, count, joined);
      starts[digit] = -share_of(sum);
      Digit* const of = to + begin * COUNT + digit * QUAD;
      for (int64_t k = 0; k < count; k += QUAD) {
        const Digit quad[QUAD] = {joined[k], joined[k + 2], joined[k + 1], joined[k + 3]};
        std::memcpy(of + k * COUNT, quad, sizeof quad);
      }
    }
  }
}

#endif

}  // namespace decodekit
