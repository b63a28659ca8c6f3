// Skinny GEMM over int8 weights, with one scale per output.

#pragma once

#include <algorithm>

#include "int8_split.h"
#include "skinny_gemm.h"
#include "gemm_amx.h"

namespace decodekit {

// Bytes of one vector of split inputs.
constexpr int64_t RUN = 64;

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)

// The instruction takes unsigned inputs, so 128 is added to each, and its share subtracted from the sums.
constexpr int INPUT_OFFSET = 128;

template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t (*found)[OUTPUTS]) {
  const __m512i one = _mm512_set1_epi8(1);
  __m512i sum[COUNT][OUTPUTS], excess[OUTPUTS];
  for (int n = 0; n < OUTPUTS; ++n) {
    excess[n] = _mm512_setzero_si512();
    for (int row = 0; row < COUNT; ++row) sum[row][n] = _mm512_setzero_si512();
  }
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = in - k >= RUN ? ~0ull : (1ull << (in - k)) - 1;
    __m512i w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = _mm512_maskz_loadu_epi8(kept, weights + n * in + k);
      fetch_ahead(weights + n * in + k);
      excess[n] = _mm512_dpbusd_epi32(excess[n], one, w[n]);
    }
    for (int row = 0; row < COUNT; ++row) {
      const __m512i inputs = _mm512_loadu_si512(x + row * padded + k);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_dpbusd_epi32(sum[row][n], inputs, w[n]);
    }
  }
  for (int n = 0; n < OUTPUTS; ++n) {
    excess[n] = _mm512_slli_epi32(excess[n], 7);
    for (int row = 0; row < COUNT; ++row) sum[row][n] = _mm512_sub_epi32(sum[row][n], excess[n]);
  }
  sum_each<COUNT * OUTPUTS>(&sum[0][0], &found[0][0]);
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

// x is [ROWS][in], weights [out][in] with one scale per output, y [ROWS][out].
template <class T, int ROWS>
void int8_gemm(const T* x, const int8_t* weights, const T* scale, T* y, int64_t out, int64_t in) {
  static thread_local Int8Split split;
  constexpr int SUMS = ROWS * SPLIT_TERMS<T>;
  const int64_t padded = (in + RUN - 1) / RUN * RUN;
  const auto finish = [=](const float* largest, int64_t n, auto& found) {
    constexpr int OUTPUTS = sizeof(found[0]) / sizeof(int32_t);
    for (int row = 0; row < ROWS; ++row) {
      const float unit = largest[row] / LARGEST;
      for (int i = 0; i < OUTPUTS; ++i) {
        const float total = combine<SPLIT_TERMS<T>>([&](int d) { return static_cast<float>(found[d * ROWS + row][i]); });
        y[row * out + n + i] = static_cast<T>(total * unit * static_cast<float>(scale[n + i]));
      }
    }
  };
#ifdef DECODEKIT_TILES
  // For up to six sums the loops below take as long; for ten they take 5.2 ms where tiles take 3.1.
  if (SUMS > 4 && in_tiles<int8_t>(out, in)) {
    split.of<T, ROWS>(x, in, in, 0);
    const float* largest = split.largest.data();
    const bool threads = out * in >= WORTH_THREADS;
    tile_sums<SUMS>(split.terms.data(), weights, out, in, threads, [=](int64_t n, auto& found) {
      finish(largest, n, found);
    });
    return;
  }
#endif
  split.of<T, ROWS>(x, in, padded, INPUT_OFFSET);
  const int8_t* terms = split.terms.data();
  const float* largest = split.largest.data();
  constexpr int AT_ONCE = SUMS <= 4 ? 4 : 1;
  each_output<AT_ONCE>(out, out * in * SUMS, [=](int64_t n, auto outputs) {
    int32_t found[SUMS][outputs()];
    each_row<SUMS, 2 * ROWS_AT_ONCE>([&](int first, auto count) {
      integer_sums<count(), outputs()>(terms + first * padded, padded, weights + n * in, in, found + first);
    });
    finish(largest, n, found);
  });
}

}  // namespace decodekit
