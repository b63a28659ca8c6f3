// The instructions of AVX-512, VNNI, VBMI and BF16 that the kernels use, in plain C++, in place of the compiler's
// intrinsics: for a CPU that has AVX2 and not these. Addresses that must be aligned are checked.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <immintrin.h>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#define __AVX512VNNI__ 1
#define __AVX512VBMI__ 1
#define __AVX512BF16__ 1

namespace emulated512 {

constexpr int BYTES = 64;

template <class T, int SIZE = BYTES>
struct Lanes {
  static constexpr int COUNT = SIZE / sizeof(T);
  T of[COUNT];

  template <class Vector>
  explicit Lanes(const Vector& vector) {
    static_assert(sizeof(Vector) == SIZE);
    std::memcpy(of, &vector, SIZE);
  }

  T operator[](int lane) const { return of[lane]; }
};

// The vector whose lanes are f(0), f(1), ...
template <class T, class Vector = __m512i, class F>
inline Vector each(F f) {
  constexpr int COUNT = sizeof(Vector) / sizeof(T);
  T lanes[COUNT];
  for (int lane = 0; lane < COUNT; ++lane) lanes[lane] = f(lane);
  Vector found;
  std::memcpy(&found, lanes, sizeof found);
  return found;
}

template <class To, class From>
inline To as(const From& from) {
  static_assert(sizeof(To) <= sizeof(From));
  To found;
  std::memcpy(&found, &from, sizeof found);
  return found;
}

inline void require_aligned(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % BYTES) std::abort();
}

template <class Vector>
inline Vector loadu(const void* from) {
  Vector found;
  std::memcpy(&found, from, sizeof found);
  return found;
}

template <class Vector>
inline Vector load(const void* from) {
  require_aligned(from);
  return loadu<Vector>(from);
}

template <class Vector>
inline void storeu(void* to, const Vector& vector) {
  std::memcpy(to, &vector, sizeof vector);
}

inline void store(void* to, const __m512i& vector) {
  require_aligned(to);
  storeu(to, vector);
}

// Reads only lanes whose bit is set.
template <class T, class Vector>
inline Vector maskz_loadu(uint64_t kept, const void* from) {
  return each<T, Vector>([&](int lane) {
    T found{};
    if (kept >> lane & 1) std::memcpy(&found, static_cast<const T*>(from) + lane, sizeof found);
    return found;
  });
}

// Alternate lanes of a and b, of the lower or upper half of every 16 bytes.
template <class T, bool UPPER, class Vector>
inline Vector unpack(const Vector& a, const Vector& b) {
  constexpr int BLOCK = 16 / sizeof(T);
  const Lanes<T> first(a), second(b);
  return each<T, Vector>([&](int lane) {
    const int from = lane / BLOCK * BLOCK + UPPER * BLOCK / 2 + lane % BLOCK / 2;
    return lane % 2 ? second[from] : first[from];
  });
}

// Blocks of 16 bytes: two of a and two of b, each by two bits of `order`.
template <class Vector>
inline Vector shuffle_blocks(const Vector& a, const Vector& b, int order) {
  struct Block { char of[16]; };
  const Lanes<Block> first(a), second(b);
  return each<Block, Vector>([&](int block) {
    const int from = order >> 2 * block & 3;
    return block < 2 ? first[from] : second[from];
  });
}

template <class T, class F>
inline __m512i of_each(const __m512i& a, F f) {
  const Lanes<T> lanes(a);
  return each<T>([&](int lane) { return static_cast<T>(f(lanes[lane])); });
}

// Adds the products of COUNT lanes of A and B to each sum of 32 bits, which wraps around.
template <class A, class B, int COUNT>
inline __m512i add_products(const __m512i& sum, const __m512i& a, const __m512i& b) {
  const Lanes<uint32_t> sums(sum);
  const Lanes<A> left(a);
  const Lanes<B> right(b);
  return each<uint32_t>([&](int lane) {
    uint32_t found = sums[lane];
    for (int i = 0; i < COUNT; ++i) {
      const int32_t product = left[lane * COUNT + i] * right[lane * COUNT + i];
      found += static_cast<uint32_t>(product);
    }
    return found;
  });
}

inline float widened(uint16_t bits) { return as<float>(static_cast<uint32_t>(bits) << 16); }

template <class Vector>
inline __m512 add_products_bf16(const __m512& sum, const Vector& a, const Vector& b) {
  const Lanes<float> sums(sum);
  const Lanes<uint16_t> left(a), right(b);
  return each<float, __m512>([&](int lane) {
    float found = sums[lane];
    for (const int i : {2 * lane, 2 * lane + 1}) found += widened(left[i]) * widened(right[i]);
    return found;
  });
}

inline __m512 fmadd(const __m512& a, const __m512& b, const __m512& c) {
  const Lanes<float> left(a), right(b), sums(c);
  return each<float, __m512>([&](int lane) { return __builtin_fmaf(left[lane], right[lane], sums[lane]); });
}

inline __m512i permutex2var(const __m512i& a, const __m512i& order, const __m512i& b) {
  const Lanes<uint8_t> first(a), second(b), from(order);
  return each<uint8_t>([&](int lane) { return (from[lane] & 64 ? second : first)[from[lane] & 63]; });
}

struct Halves { __m256 low, high; };

inline __m512 widened_halves(const __m256i& from) {
  const auto of = as<std::pair<__m128i, __m128i>>(from);
  return as<__m512>(Halves{_mm256_cvtph_ps(of.first), _mm256_cvtph_ps(of.second)});
}

template <int ROUNDING>
inline __m256i narrowed_halves(const __m512& from) {
  const auto of = as<Halves>(from);
  return _mm256_set_m128i(_mm256_cvtps_ph(of.high, ROUNDING), _mm256_cvtps_ph(of.low, ROUNDING));
}

}  // namespace emulated512

#define _mm512_setzero_ps() (__m512{})
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_set1_epi8(of) emulated512::each<int8_t>([&](int) { return static_cast<int8_t>(of); })
#define _mm512_set1_epi32(of) emulated512::each<int32_t>([&](int) { return static_cast<int32_t>(of); })

#define _mm512_load_ps(from) emulated512::load<__m512>(from)
#define _mm512_load_si512(from) emulated512::load<__m512i>(from)
#define _mm512_loadu_si512(from) emulated512::loadu<__m512i>(from)
#define _mm512_store_si512(to, of) emulated512::store(to, of)
#define _mm512_storeu_si512(to, of) emulated512::storeu<__m512i>(to, of)
#define _mm512_maskz_loadu_ps(kept, from) emulated512::maskz_loadu<float, __m512>(kept, from)
#define _mm512_maskz_loadu_epi16(kept, from) emulated512::maskz_loadu<uint16_t, __m512i>(kept, from)
#define _mm256_maskz_loadu_epi16(kept, from) emulated512::maskz_loadu<uint16_t, __m256i>(kept, from)

#define _mm512_castps_pd(of) emulated512::as<__m512d>(of)
#define _mm512_castpd_ps(of) emulated512::as<__m512>(of)
#define _mm512_castsi512_ps(of) emulated512::as<__m512>(of)
#define _mm512_castps_si512(of) emulated512::as<__m512i>(of)
#define _mm512_castps512_ps128(of) emulated512::as<__m128>(of)

#define _mm512_unpacklo_ps(a, b) emulated512::unpack<float, false>(a, b)
#define _mm512_unpackhi_ps(a, b) emulated512::unpack<float, true>(a, b)
#define _mm512_unpacklo_pd(a, b) emulated512::unpack<double, false>(a, b)
#define _mm512_unpackhi_pd(a, b) emulated512::unpack<double, true>(a, b)
#define _mm512_unpacklo_epi32(a, b) emulated512::unpack<int32_t, false>(a, b)
#define _mm512_unpackhi_epi32(a, b) emulated512::unpack<int32_t, true>(a, b)
#define _mm512_unpacklo_epi64(a, b) emulated512::unpack<int64_t, false>(a, b)
#define _mm512_unpackhi_epi64(a, b) emulated512::unpack<int64_t, true>(a, b)
#define _mm512_shuffle_f32x4(a, b, order) emulated512::shuffle_blocks<__m512>(a, b, order)
#define _mm512_shuffle_i32x4(a, b, order) emulated512::shuffle_blocks<__m512i>(a, b, order)
#define _mm512_permutex2var_epi8(a, order, b) emulated512::permutex2var(a, order, b)

#define _mm512_and_si512(a, b) ((__m512i)(a) & (__m512i)(b))
#define _mm512_or_si512(a, b) ((__m512i)(a) | (__m512i)(b))
#define _mm512_srli_epi16(of, bits) \
  emulated512::of_each<uint16_t>(of, [&](uint16_t lane) { return lane >> (bits); })
#define _mm512_srli_epi32(of, bits) \
  emulated512::of_each<uint32_t>(of, [&](uint32_t lane) { return lane >> (bits); })
#define _mm512_slli_epi32(of, bits) \
  emulated512::of_each<uint32_t>(of, [&](uint32_t lane) { return lane << (bits); })

#define _mm512_add_ps(a, b) ((__m512)(a) + (__m512)(b))
#define _mm512_fmadd_ps(a, b, c) emulated512::fmadd(a, b, c)
#define _mm512_dpbusd_epi32(sum, a, b) emulated512::add_products<uint8_t, int8_t, 4>(sum, a, b)
#define _mm512_dpwssd_epi32(sum, a, b) emulated512::add_products<int16_t, int16_t, 2>(sum, a, b)
#define _mm512_dpbf16_ps(sum, a, b) emulated512::add_products_bf16(sum, a, b)

#define _mm512_cvtepu16_epi32(of) \
  emulated512::each<int32_t>([lanes = emulated512::Lanes<uint16_t, 32>(of)](int lane) { return lanes[lane]; })
#define _mm512_cvtepi32_ps(of) \
  emulated512::each<float, at::vec::Vectorized<float>>( \
      [lanes = emulated512::Lanes<int32_t>(of)](int lane) { return static_cast<float>(lanes[lane]); })
#define _mm512_cvtph_ps(of) emulated512::widened_halves(of)
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(of, rounding) emulated512::narrowed_halves<rounding>(of)

// torch's vectors as wide, each an array.
#undef CPU_CAPABILITY_AVX2
#define CPU_CAPABILITY_AVX512
#include <ATen/cpu/vec/vec_base.h>
#undef CPU_CAPABILITY_AVX512
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

static_assert(sizeof(at::vec::Vectorized<float>) == emulated512::BYTES);
