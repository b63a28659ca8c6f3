// Horizontal sums of vectors, in the same order for each.

#pragma once

#include <algorithm>
#include <type_traits>

#include "float_vectors.h"
#include "gemm.h"

namespace decodekit {

// sum_four: the horizontal sum of each of four vectors.

#ifdef DECODEKIT_AVX512

// A third of the instructions of four single sums.
inline void sum_four(const __m512 (&of)[4], float* found) {
  const __m512 first = _mm512_add_ps(_mm512_unpacklo_ps(of[0], of[1]), _mm512_unpackhi_ps(of[0], of[1]));
  const __m512 second = _mm512_add_ps(_mm512_unpacklo_ps(of[2], of[3]), _mm512_unpackhi_ps(of[2], of[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(first), _mm512_castps_pd(second));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(first), _mm512_castps_pd(second));
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m512 halves = _mm512_add_ps(sum, _mm512_shuffle_f32x4(sum, sum, 0b01001110));
  const __m512 all = _mm512_add_ps(halves, _mm512_shuffle_f32x4(halves, halves, 0b10110001));
  _mm_storeu_ps(found, _mm512_castps512_ps128(all));
}

#elif defined(DECODEKIT_AVX2)

// Likewise.
inline void sum_four(const Floats (&of)[4], float* found) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(of[0], of[1]), _mm256_hadd_ps(of[2], of[3]));
  _mm_storeu_ps(found, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

#else

inline void sum_four(const Floats (&of)[4], float* found) {
  const auto plus = [](const Floats& a, const Floats& b) { return a + b; };
  for (int i = 0; i < 4; ++i) found[i] = at::vec::vec_reduce_all<float>(plus, of[i]);
}

#endif

// Horizontal sums of COUNT vectors, of(i) of the constants 0 to COUNT - 1, to as many numbers. Not of an array: GCC
// would keep one whose address is taken in memory, and store every sum in every step.
template <int COUNT, int FIRST = 0, class F>
inline __attribute__((always_inline)) void sum_each(F of, float* found) {
  const auto at = [=](auto i) __attribute__((always_inline)) {
    return of(std::integral_constant<int, (FIRST + i() < COUNT ? FIRST + i() : COUNT - 1)>());
  };
  using I = std::integral_constant<int, 0>;
  const decltype(at(I())) four[4] = {
      at(I()), at(std::integral_constant<int, 1>()), at(std::integral_constant<int, 2>()),
      at(std::integral_constant<int, 3>())};
  if constexpr (FIRST + 4 <= COUNT) {
    sum_four(four, found + FIRST);
  } else {
    float last[4];
    sum_four(four, last);
    std::copy_n(last, COUNT - FIRST, found + FIRST);
  }
  if constexpr (FIRST + 4 < COUNT) sum_each<COUNT, FIRST + 4>(of, found);
}

}  // namespace decodekit
