// Skinny GEMM over float32, bfloat16 and float16 weights.

#pragma once

#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "skinny_gemm.h"
#include "gemm_amx.h"

namespace decodekit {

// Sums of products of COUNT rows by OUTPUTS rows of weights, in single precision: `sums`.

#ifdef DECODEKIT_AVX512

// Weights per instruction, type of the inputs, and the multiply-add instruction.
template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  using Input = float;
  static constexpr int COUNT = 16;
  using Vector = __m512;
  static Vector weights(const float* p, uint32_t kept) { return _mm512_maskz_loadu_ps(kept, p); }
  static Vector inputs(const float* p, uint32_t kept) { return _mm512_maskz_loadu_ps(kept, p); }
  static __m512 add(__m512 sum, Vector w, Vector x) { return _mm512_fmadd_ps(w, x, sum); }
};

template <>
struct Lanes<c10::Half> : Lanes<float> {
  static Vector weights(const c10::Half* p, uint32_t kept) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(kept, p));
  }
};

#ifdef __AVX512BF16__
template <>
struct Lanes<c10::BFloat16> {
  using Input = c10::BFloat16;
  static constexpr int COUNT = 32;
  using Vector = __m512bh;
  static Vector weights(const void* p, uint32_t kept) { return (__m512bh)_mm512_maskz_loadu_epi16(kept, p); }
  static Vector inputs(const void* p, uint32_t kept) { return weights(p, kept); }
  static __m512 add(__m512 sum, Vector w, Vector x) { return _mm512_dpbf16_ps(sum, w, x); }
};
#else
template <>
struct Lanes<c10::BFloat16> : Lanes<float> {
  static Vector weights(const c10::BFloat16* p, uint32_t kept) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(kept, p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};
#endif

template <class T, int COUNT, int OUTPUTS>
inline void sums(const typename Lanes<T>::Input* x, const T* weights, int64_t in, float (*found)[OUTPUTS]) {
  using L = Lanes<T>;
  __m512 sum[COUNT][OUTPUTS];
  for (int row = 0; row < COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_setzero_ps();
  for (int64_t k = 0; k < in; k += L::COUNT) {
    const uint32_t kept = in - k >= L::COUNT ? ~0u >> (32 - L::COUNT) : (1u << (in - k)) - 1;
    typename L::Vector w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = L::weights(weights + n * in + k, kept);
      fetch_ahead(weights + n * in + k);
    }
    for (int row = 0; row < COUNT; ++row) {
      const typename L::Vector inputs = L::inputs(x + row * in + k, kept);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = L::add(sum[row][n], w[n], inputs);
    }
  }
  sum_each<COUNT * OUTPUTS>(&sum[0][0], &found[0][0]);
}

#else

template <class T>
struct Lanes {
  using Input = float;
};

template <class T, int COUNT, int OUTPUTS>
inline void sums(const float* x, const T* weights, int64_t in, float (*found)[OUTPUTS]) {
  for (int n = 0; n < OUTPUTS; ++n) {
    for (int row = 0; row < COUNT; ++row) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < in; ++k) sum += static_cast<float>(weights[n * in + k]) * x[row * in + k];
      found[row][n] = sum;
    }
  }
}

#endif

// x is [ROWS][in], weights [out][in], y [ROWS][out].
template <class T, int ROWS>
void float_gemm(const T* x, const T* weights, T* y, int64_t out, int64_t in) {
#if defined(DECODEKIT_TILED) && defined(DECODEKIT_TILES) && defined(__AMX_BF16__)
  // With tiles, one row takes 6.0 ms where the loops below take 5.1, but five take 6.2 instead of 8.3, and
  // sixteen 7.5 instead of 22. The order of the sums differs, so all numbers of rows must use the same way.
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    if (in_tiles<T>(out, in)) {
      tile_sums<ROWS>(x, weights, out, in, out * in * ROWS >= WORTH_THREADS, [=](int64_t n, const auto& found) {
        for (int row = 0; row < ROWS; ++row)
          for (int i = 0; i < TILE; ++i) y[row * out + n + i] = static_cast<T>(found[row][i]);
      });
      return;
    }
  }
#endif
  using Input = typename Lanes<T>::Input;
  static thread_local std::vector<Input> converted;
  const Input* inputs;
  if constexpr (std::is_same_v<Input, T>) {
    inputs = x;
  } else {
    converted.assign(x, x + ROWS * in);
    inputs = converted.data();
  }
  // Outputs per run, leaving registers for the weights.
  constexpr int AT_ONCE = ROWS <= 5 ? 4 : 2;
  each_output<AT_ONCE>(out, out * in * ROWS, [=](int64_t n, auto outputs) {
    each_row<ROWS, ROWS_AT_ONCE>([=](int first, auto count) {
      float found[count()][outputs()];
      sums<T, count(), outputs()>(inputs + first * in, weights + n * in, in, found);
      for (int row = 0; row < count(); ++row)
        for (int i = 0; i < outputs(); ++i) y[(first + row) * out + n + i] = static_cast<T>(found[row][i]);
    });
  });
}

}  // namespace decodekit
