// Sums of products by int8 weights, [out][in], for few terms: vectors of inputs, added up across lanes.

#pragma once

#include <utility>

#include "gemm.h"

namespace decodekit {

// Bytes of one vector of split inputs.
constexpr int64_t RUN = 64;

// Terms whose sums for four outputs are kept in registers: with more, one output at a time is faster.
constexpr int TERMS_AT_ONCE = 2;

// Terms that an output's weights are multiplied by while they are read; rearranged weights (int8_panel.h) win from
// 12 on.
constexpr int FEW_TERMS = 10;

// integer_sums: the sums of COUNT terms for OUTPUTS outputs.

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)
#define DECODEKIT_VNNI

// The instruction takes unsigned inputs, so 128 is added to each, and its share subtracted from the sums.
constexpr int INPUT_OFFSET = 128;

// The bytes of a vector that are weights, of those `left`.
inline __mmask64 kept_bytes(int64_t left) { return left >= RUN ? ~0ull : (1ull << left) - 1; }

// With every index a constant: GCC 12 moves the sums of an array from register to register in every step.
template <int OUTPUTS, std::size_t... I, std::size_t... N>
inline void integer_sums_at(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t* found, std::index_sequence<I...>,
    std::index_sequence<N...>) {
  const __m512i one = _mm512_set1_epi8(1);
  __m512i sum[sizeof...(I)], shares[OUTPUTS];
  ((sum[I] = _mm512_setzero_si512()), ...);
  ((shares[N] = _mm512_setzero_si512()), ...);
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = kept_bytes(in - k);
    const __m512i w[] = {_mm512_maskz_loadu_epi8(kept, weights + N * in + k)...};
    (fetch_ahead(weights + N * in + k), ...);
    ((shares[N] = _mm512_dpbusd_epi32(shares[N], one, w[N])), ...);
    ((sum[I] = _mm512_dpbusd_epi32(sum[I], _mm512_loadu_si512(x + I / OUTPUTS * padded + k), w[I % OUTPUTS])), ...);
  }
  ((shares[N] = _mm512_slli_epi32(shares[N], 7)), ...);
  const auto total = [&](auto i) __attribute__((always_inline)) {
    return _mm512_sub_epi32(sum[i()], shares[i() % OUTPUTS]);
  };
  sum_each<sizeof...(I)>(total, found);
}

template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t (*found)[OUTPUTS]) {
  integer_sums_at<OUTPUTS>(
      x, padded, weights, in, &found[0][0], std::make_index_sequence<COUNT * OUTPUTS>(),
      std::make_index_sequence<OUTPUTS>());
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
