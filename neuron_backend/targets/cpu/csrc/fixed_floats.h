// Vectors of 4, 8 or 16 float32, whatever the CPU's vectors, loaded from and stored to any dtype.

#pragma once

#include <cstdint>
#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "gemm.h"

// How such vectors are passed depends on the instruction set, but all that take them are inlined.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace decodekit {

template <int COUNT>
struct Fixed;

template <>
struct Fixed<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Bits = uint32_t __attribute__((vector_size(16)));
  using Halves = uint16_t __attribute__((vector_size(8)));
};

template <>
struct Fixed<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Bits = uint32_t __attribute__((vector_size(32)));
  using Halves = uint16_t __attribute__((vector_size(16)));
};

template <>
struct Fixed<16> {
  using Floats = float __attribute__((vector_size(64)));
  using Bits = uint32_t __attribute__((vector_size(64)));
  using Halves = uint16_t __attribute__((vector_size(32)));
};

template <int COUNT>
using FixedFloats = typename Fixed<COUNT>::Floats;

template <int COUNT>
inline FixedFloats<COUNT> load_fixed(const float* p) {
  FixedFloats<COUNT> found;
  std::memcpy(&found, p, sizeof found);
  return found;
}

template <int COUNT, class T>
inline FixedFloats<COUNT> load_fixed(const T* p) {
  FixedFloats<COUNT> found;
  for (int i = 0; i < COUNT; ++i) found[i] = static_cast<float>(p[i]);
  return found;
}

template <int COUNT>
inline FixedFloats<COUNT> load_fixed(const c10::BFloat16* p) {
  typename Fixed<COUNT>::Halves found;
  std::memcpy(&found, p, sizeof found);
  return (FixedFloats<COUNT>)(__builtin_convertvector(found, typename Fixed<COUNT>::Bits) << 16);
}

// Numbers in a vector of the CPU. GCC 12 compares longer vectors number by number.
#ifdef DECODEKIT_AVX512
constexpr int NATIVE = 16;
#elif defined(DECODEKIT_AVX2)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif

// store_native: stores a vector of the CPU, or a shorter one; store_fixed: any.

template <int COUNT>
inline void store_native(float* to, FixedFloats<COUNT> values) {
  std::memcpy(to, &values, sizeof values);
}

template <int COUNT>
inline void store_native(c10::Half* to, FixedFloats<COUNT> values) {
#if defined(DECODEKIT_AVX512) || defined(DECODEKIT_AVX2)
  if constexpr (COUNT == 4) {
    _mm_storel_epi64((__m128i*)to, _mm_cvtps_ph((__m128)values, _MM_FROUND_TO_NEAREST_INT));
  } else if constexpr (COUNT == 8) {
    _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph((__m256)values, _MM_FROUND_TO_NEAREST_INT));
  }
#ifdef DECODEKIT_AVX512
  if constexpr (COUNT == 16)
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph((__m512)values, _MM_FROUND_TO_NEAREST_INT));
#endif
#else
  for (int i = 0; i < COUNT; ++i) to[i] = static_cast<c10::Half>(values[i]);
#endif
}

// Rounded to nearest, ties to even, as c10 does.
template <int COUNT>
inline void store_native(c10::BFloat16* to, FixedFloats<COUNT> values) {
  using Bits = typename Fixed<COUNT>::Bits;
  const Bits exact = (Bits)values;
  const Bits rounded = (exact + ((exact >> 16) & 1) + 0x7fff) >> 16;
  // A comparison gives -1 or 0 in each number.
  const Bits is_number = (Bits)(values == values);
  const auto found = __builtin_convertvector(
      (rounded & is_number) | (0x7fc0 & ~is_number), typename Fixed<COUNT>::Halves);
  std::memcpy(to, &found, sizeof found);
}

template <int COUNT, class T>
inline void store_fixed(T* to, FixedFloats<COUNT> values) {
  if constexpr (COUNT > NATIVE) {
    FixedFloats<COUNT / 2> halves[2];
    std::memcpy(halves, &values, sizeof values);
    store_fixed<COUNT / 2>(to, halves[0]);
    store_fixed<COUNT / 2>(to + COUNT / 2, halves[1]);
  } else {
    store_native<COUNT>(to, values);
  }
}

// Stores COUNT numbers, 4, 2 or 1.
template <int COUNT, class T>
inline void store_some(T* to, const float* values) {
  if constexpr (COUNT == 4) {
    store_fixed<4>(to, load_fixed<4>(values));
  } else {
    for (int i = 0; i < COUNT; ++i) to[i] = static_cast<T>(values[i]);
  }
}

}  // namespace decodekit
