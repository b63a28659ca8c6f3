// Four float32 at a time, loaded from and stored to any dtype.

#pragma once

#include <cstdint>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "gemm.h"

namespace decodekit {

using Four = float __attribute__((vector_size(16)));
using FourIntegers = int32_t __attribute__((vector_size(16)));

inline Four four(const float* p) {
  Four found;
  std::memcpy(&found, p, sizeof found);
  return found;
}

inline Four four(const int32_t* p) {
  FourIntegers found;
  std::memcpy(&found, p, sizeof found);
  return __builtin_convertvector(found, Four);
}

template <class T>
inline Four four(const T* p) {
  return Four{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])};
}

inline void store_four(float* to, Four values) { std::memcpy(to, &values, sizeof values); }

inline void store_four(c10::Half* to, Four values) {
#ifdef DECODEKIT_AVX512
  _mm_storel_epi64((__m128i*)to, _mm_cvtps_ph((__m128)values, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < 4; ++i) to[i] = static_cast<c10::Half>(values[i]);
#endif
}

// Rounded to nearest, ties to even, as c10 does.
inline void store_four(c10::BFloat16* to, Four values) {
  using Bits = uint32_t __attribute__((vector_size(16)));
  using Halves = uint16_t __attribute__((vector_size(8)));
  const Bits exact = (Bits)values;
  const Bits rounded = (exact + ((exact >> 16) & 1) + 0x7fff) >> 16;
  // A comparison gives -1 or 0 in each number.
  const Bits is_number = (Bits)(values == values);
  const Halves found = __builtin_convertvector((rounded & is_number) | (0x7fc0 & ~is_number), Halves);
  std::memcpy(to, &found, sizeof found);
}

// Stores COUNT numbers, 4 or 1.
template <int COUNT, class T>
inline void store_some(T* to, const float* values) {
  if constexpr (COUNT == 4) {
    store_four(to, four(values));
  } else {
    for (int i = 0; i < COUNT; ++i) to[i] = static_cast<T>(values[i]);
  }
}

}  // namespace decodekit
