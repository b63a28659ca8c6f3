// Sums of products by int8 weights, [out][in], for few terms: vectors of inputs, added up across lanes.

#pragma once

#include "gemm.h"

namespace decodekit {

// Bytes of one vector of split inputs.
constexpr int64_t RUN = 64;

// Terms whose sums for four outputs are kept in registers; GCC 12 does not keep more there.
constexpr int TERMS_AT_ONCE = 4;

// Terms that an output's weights are multiplied by while they are read. On an AMD EPYC (Zen 4), 10 take as long as
// one; rearranged weights (int8_panel.h) win from 12 on.
constexpr int FEW_TERMS = 10;

// integer_sums: the sums of COUNT terms for OUTPUTS outputs.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)
#define DECODEKIT_VNNI

// The instruction takes unsigned inputs, so 128 is added to each, and its share subtracted from the sums.
constexpr int INPUT_OFFSET = 128;

// The bytes of a vector that are weights, of those `left`.
inline __mmask64 kept_bytes(int64_t left) { return left >= RUN ? ~0ull : (1ull << left) - 1; }

template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t (*found)[OUTPUTS]) {
  const __m512i one = _mm512_set1_epi8(1);
  // The last are the sums of the weights.
  __m512i sum[COUNT + 1][OUTPUTS];
  for (int row = 0; row <= COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_setzero_si512();
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = kept_bytes(in - k);
    __m512i w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = _mm512_maskz_loadu_epi8(kept, weights + n * in + k);
      fetch_ahead(weights + n * in + k);
      sum[COUNT][n] = _mm512_dpbusd_epi32(sum[COUNT][n], one, w[n]);
    }
    for (int row = 0; row < COUNT; ++row) {
      const __m512i inputs = _mm512_loadu_si512(x + row * padded + k);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_dpbusd_epi32(sum[row][n], inputs, w[n]);
    }
  }
  for (int n = 0; n < OUTPUTS; ++n) sum[COUNT][n] = _mm512_slli_epi32(sum[COUNT][n], 7);
  const auto total = [&](auto i) __attribute__((always_inline)) {
    return _mm512_sub_epi32(sum[i() / OUTPUTS][i() % OUTPUTS], sum[COUNT][i() % OUTPUTS]);
  };
  sum_each<COUNT * OUTPUTS>(total, &found[0][0]);
}

#else

constexpr int INPUT_OFFSET = 0;

template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t (*found)[OUTPUTS]) {
  for (int n = 0; n < OUTPUTS; ++n) {
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
