// Weights of 4 bits, with a scale and a zero for each group of inputs.

#pragma once

#include <vector>

#include "digits.h"
#include "rows.h"

namespace decodekit {

// 4-bit weights, as quantization/int4_linear.py stores them: [blocks][in][32] bytes of two outputs, 32
// apart, and for each group of 32 inputs of an output a scale and the weight of integer 8.

constexpr int GROUP = 32;
constexpr int BLOCK = 64;
constexpr int HALF = BLOCK / 2;
constexpr float MIDDLE = 8;

// The sums of one group of inputs, [COUNT][64 outputs], for COUNT rows of digits.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512VBMI__)

template <int COUNT>
inline void nibble_sums(const int8_t* x, int64_t padded, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  // From four inputs of 32 outputs, two rows each, to 16 outputs with their four inputs side by side.
  alignas(64) static constexpr auto ORDER = [] {
    struct { uint8_t of[2][64]; } order{};
    for (int half = 0; half < 2; ++half)
      for (int lane = 0; lane < 64; ++lane) order.of[half][lane] = lane % 4 * HALF + half * 16 + lane / 4;
    return order;
  }();
  const __m512i low = _mm512_set1_epi8(15);
  __m512i sum[COUNT][4];
  for (int row = 0; row < COUNT; ++row)
    for (int part = 0; part < 4; ++part) sum[row][part] = _mm512_setzero_si512();
  for (int k = 0; k < GROUP; k += 4) {
    const __m512i first = _mm512_loadu_si512(packed + k * HALF);
    const __m512i second = _mm512_loadu_si512(packed + (k + 2) * HALF);
    fetch_ahead(packed + k * HALF);
    fetch_ahead(packed + (k + 2) * HALF);
    for (int half = 0; half < 2; ++half) {
      const __m512i both = _mm512_permutex2var_epi8(first, _mm512_load_si512(ORDER.of[half]), second);
      const __m512i lower = _mm512_and_si512(both, low);
      const __m512i upper = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
      for (int row = 0; row < COUNT; ++row) {
        int32_t four;
        __builtin_memcpy(&four, x + row * padded + k, sizeof four);
        const __m512i inputs = _mm512_set1_epi32(four);
        sum[row][half] = _mm512_dpbusd_epi32(sum[row][half], lower, inputs);
        sum[row][half + 2] = _mm512_dpbusd_epi32(sum[row][half + 2], upper, inputs);
      }
    }
  }
  for (int row = 0; row < COUNT; ++row)
    for (int part = 0; part < 4; ++part) _mm512_storeu_si512(found[row] + part * 16, sum[row][part]);
}

#else

template <int COUNT>
inline void nibble_sums(const int8_t* x, int64_t padded, const uint8_t* packed, int32_t (*found)[BLOCK]) {
  for (int row = 0; row < COUNT; ++row) {
    for (int n = 0; n < BLOCK; ++n) found[row][n] = 0;
    for (int k = 0; k < GROUP; ++k) {
      const int32_t input = x[row * padded + k];
#pragma omp simd
      for (int n = 0; n < HALF; ++n) {
        found[row][n] += input * (packed[k * HALF + n] & 15);
        found[row][n + HALF] += input * (packed[k * HALF + n] >> 4);
      }
    }
  }
}

#endif

// x is [ROWS][in], levels [groups][outputs][2], y [ROWS][outputs], of all blocks.
template <class T, int ROWS>
void int4_rows(const T* x, const uint8_t* packed, const T* levels, T* y, int64_t blocks, int64_t in) {
  static thread_local Digits made;
  static thread_local std::vector<float> inputs;
  made.of<T, ROWS>(x, in, in, 0);
  const int8_t* digits = made.digits.data();
  const float* largest = made.largest.data();
  const int64_t groups = in / GROUP, outputs = blocks * BLOCK;
  constexpr int COUNT = DIGITS<T>, SUMS = ROWS * COUNT;
  // Of each row and group, the sum of the inputs.
  inputs.resize(ROWS * groups);
  for (int row = 0; row < ROWS; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      int32_t parts[COUNT] = {};
      for (int d = 0; d < COUNT; ++d) {
        const int8_t* of = digits + (d * ROWS + row) * in + group * GROUP;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < GROUP; ++k) sum += of[k];
        parts[d] = sum;
      }
      inputs[row * groups + group] = joined<COUNT>(parts, 1);
    }
  }
  const float* input_sums = inputs.data();
#pragma omp parallel for schedule(static) if (outputs * in * SUMS >= WORTH_THREADS)
  for (int64_t block = 0; block < blocks; ++block) {
    alignas(64) float total[ROWS][BLOCK] = {};
    for (int64_t group = 0; group < groups; ++group) {
      alignas(64) int32_t found[SUMS][BLOCK];
      each_row<SUMS, 4>([&](int first, auto count) {
        nibble_sums<count()>(
            digits + first * in + group * GROUP, in, packed + (block * in + group * GROUP) * HALF, found + first);
      });
      alignas(64) float scale[BLOCK], zero[BLOCK];
      const T* level = levels + (group * outputs + block * BLOCK) * 2;
#pragma omp simd
      for (int n = 0; n < BLOCK; ++n) {
        scale[n] = static_cast<float>(level[2 * n]);
        zero[n] = static_cast<float>(level[2 * n + 1]) - MIDDLE * scale[n];
      }
      for (int row = 0; row < ROWS; ++row) {
        const float sum = input_sums[row * groups + group];
#pragma omp simd
        for (int n = 0; n < BLOCK; ++n)
          total[row][n] += joined<COUNT>(&found[row][n], ROWS * BLOCK) * scale[n] + sum * zero[n];
      }
    }
    for (int row = 0; row < ROWS; ++row)
#pragma omp simd
      for (int n = 0; n < BLOCK; ++n)
        y[row * outputs + block * BLOCK + n] = static_cast<T>(total[row][n] * (largest[row] / LARGEST));
  }
}

}  // namespace decodekit
