// Products of few rows by weights: what takes time is reading the weights, once, at the speed of memory.
//
//     y[row][n] = sum over k of x[row][k] * weight[n][k]
//
// A row's sum has the same order whatever the number of rows, so that a verification of several
// columns finds, to the last bit, what decoding column by column finds.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tiles.h"

#if !defined(DECODEKIT_PORTABLE) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) \
    && defined(__AVX512VL__)
#define DECODEKIT_AVX512
#include <immintrin.h>
#endif

namespace decodekit {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint32_t;
using std::uint8_t;

// Rows whose sums are in registers at a time; more take the weights from the nearest cache again.
constexpr int ROWS_AT_ONCE = 8;

// Bytes that are asked for ahead of the sums. Without, two threads of a Xeon read bfloat16 weights at
// 24 GB/s and 8-bit ones at 23; with 8 KiB, at 32 and 54.
constexpr int64_t AHEAD = 8192;

// Fewer products than that are done before a second thread has begun.
constexpr int64_t WORTH_THREADS = 1 << 15;

inline void fetch_ahead(const void* weights) {
  __builtin_prefetch(static_cast<const char*>(weights) + AHEAD);
}

// Calls f(n, count) for runs of up to AT_ONCE outputs, over the threads; count is a constant.
template <int AT_ONCE, class F>
void each_output(int64_t outputs, int64_t products, F f) {
  const int64_t whole = outputs / AT_ONCE;
#pragma omp parallel for schedule(static) if (products >= WORTH_THREADS)
  for (int64_t run = 0; run < whole; ++run) {
    f(run * AT_ONCE, std::integral_constant<int, AT_ONCE>());
  }
  for (int64_t n = whole * AT_ONCE; n < outputs; ++n) {
    f(n, std::integral_constant<int, 1>());
  }
}

// Calls f(first, count) for all rows, as many at once as there are registers for; count is a constant.
template <int ROWS, int AT_ONCE, int FIRST = 0, class F>
inline void each_row(F&& f) {
  constexpr int COUNT = std::min(ROWS - FIRST, AT_ONCE);
  f(FIRST, std::integral_constant<int, COUNT>());
  if constexpr (FIRST + COUNT < ROWS) {
    each_row<ROWS, AT_ONCE, FIRST + COUNT>(f);
  }
}

#ifdef DECODEKIT_AVX512

inline __m512 plus(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512i plus(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512 low_pairs(__m512 a, __m512 b) { return _mm512_unpacklo_ps(a, b); }
inline __m512i low_pairs(__m512i a, __m512i b) { return _mm512_unpacklo_epi32(a, b); }
inline __m512 high_pairs(__m512 a, __m512 b) { return _mm512_unpackhi_ps(a, b); }
inline __m512i high_pairs(__m512i a, __m512i b) { return _mm512_unpackhi_epi32(a, b); }
inline __m512i bits(__m512 a) { return _mm512_castps_si512(a); }
inline __m512i bits(__m512i a) { return a; }
inline void keep(float* to, __m512i a) { _mm_storeu_ps(to, _mm_castsi128_ps(_mm512_castsi512_si128(a))); }
inline void keep(int32_t* to, __m512i a) { _mm_storeu_si128((__m128i*)to, _mm512_castsi512_si128(a)); }

// The sum of all numbers of each of four vectors: a third of the instructions that one by one takes, and
// in the same order for each of the four.
template <class Vector>
inline Vector sums_of_four(const Vector (&of)[4]) {
  const Vector first = plus(low_pairs(of[0], of[1]), high_pairs(of[0], of[1]));
  const Vector second = plus(low_pairs(of[2], of[3]), high_pairs(of[2], of[3]));
  Vector sum = plus(
      (Vector)_mm512_unpacklo_epi64(bits(first), bits(second)),
      (Vector)_mm512_unpackhi_epi64(bits(first), bits(second)));
  sum = plus(sum, (Vector)_mm512_shuffle_i64x2(bits(sum), bits(sum), 0b01001110));
  return plus(sum, (Vector)_mm512_shuffle_i64x2(bits(sum), bits(sum), 0b10110001));
}

// Of COUNT vectors, to as many numbers.
template <int COUNT, class Vector, class Number>
inline void sum_each(const Vector* of, Number* found) {
  Number four[4];
  for (int i = 0; i < COUNT; i += 4) {
    Vector group[4];
    for (int j = 0; j < 4; ++j) group[j] = of[std::min(i + j, COUNT - 1)];
    keep(four, bits(sums_of_four(group)));
    for (int j = 0; j < 4 && i + j < COUNT; ++j) found[i + j] = four[j];
  }
}

// Sums of products of COUNT rows by OUTPUTS rows of weights, in single precision.

// How many weights one instruction takes, what inputs it multiplies them by, and the instruction.
template <class T>
struct Lanes;

template <>
struct Lanes<float> {
  using Input = float;
  static constexpr int COUNT = 16;
  using Vector = __m512;
  static inline Vector weights(const float* p, uint32_t kept) { return _mm512_maskz_loadu_ps(kept, p); }
  static inline Vector inputs(const float* p, uint32_t kept) { return _mm512_maskz_loadu_ps(kept, p); }
  static inline __m512 add(__m512 sum, Vector w, Vector x) { return _mm512_fmadd_ps(w, x, sum); }
};

template <>
struct Lanes<c10::Half> : Lanes<float> {
  static inline Vector weights(const c10::Half* p, uint32_t kept) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(kept, p));
  }
};

#ifdef __AVX512BF16__
template <>
struct Lanes<c10::BFloat16> {
  using Input = c10::BFloat16;
  static constexpr int COUNT = 32;
  using Vector = __m512bh;
  static inline Vector weights(const void* p, uint32_t kept) { return (__m512bh)_mm512_maskz_loadu_epi16(kept, p); }
  static inline Vector inputs(const void* p, uint32_t kept) { return weights(p, kept); }
  static inline __m512 add(__m512 sum, Vector w, Vector x) { return _mm512_dpbf16_ps(sum, w, x); }
};
#else
template <>
struct Lanes<c10::BFloat16> : Lanes<float> {
  static inline Vector weights(const c10::BFloat16* p, uint32_t kept) {
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
void float_rows(const T* x, const T* weights, T* y, int64_t out, int64_t in) {
  using Input = typename Lanes<T>::Input;
  static thread_local std::vector<Input> converted;
  const Input* inputs;
  if constexpr (std::is_same_v<Input, T>) {
    inputs = x;
  } else {
    converted.assign(x, x + ROWS * in);
    inputs = converted.data();
  }
  // As many as leave registers for the weights themselves.
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

// Inputs as a few digits of 8 bits each, as quantization/digits.py has it: the same operations in the
// same order, so that the numbers are the same to the last bit.

constexpr float LARGEST = 127;
constexpr float BASE = 254;

template <class T>
constexpr int DIGITS = sizeof(T) == 4 ? 3 : 2;

// Of ROWS rows: digit d of row r at [(d * ROWS + r) * padded], which zeros fill up to `padded`. `offset` is
// added to each, in 8 bits.
struct Digits {
  std::vector<int8_t> digits;
  std::vector<float> largest;
  std::vector<float> wide;

  template <class T, int ROWS>
  void of(const T* x, int64_t in, int64_t padded, int offset) {
    digits.assign(DIGITS<T> * ROWS * padded, 0);
    largest.resize(ROWS);
    wide.resize(in);
    for (int row = 0; row < ROWS; ++row) {
      float most = FLT_MIN, unordered = 0;
#pragma omp simd reduction(max : most) reduction(+ : unordered)
      for (int64_t k = 0; k < in; ++k) {
        wide[k] = static_cast<float>(x[row * in + k]);
        most = std::max(most, std::fabs(wide[k]));
        unordered += wide[k] - wide[k];
      }
      // What is no number makes the row's results none, whichever inputs it is.
      largest[row] = most + unordered;
#pragma omp simd
      for (int64_t k = 0; k < in; ++k) wide[k] = wide[k] / most * LARGEST;
      for (int d = 0; d < DIGITS<T>; ++d) {
        int8_t* to = digits.data() + (d * ROWS + row) * padded;
#pragma omp simd
        for (int64_t k = 0; k < in; ++k) {
          const float digit = std::nearbyint(wide[k]);
          to[k] = static_cast<int8_t>(static_cast<int32_t>(digit) + offset);
          wide[k] = (wide[k] - digit) * BASE;
        }
      }
    }
  }
};

// Parts of one product, the largest digit's first and `step` apart, to its value.
template <int COUNT, class Part>
inline float joined(const Part* parts, int step) {
  float total = static_cast<float>(parts[(COUNT - 1) * step]);
  for (int d = COUNT - 2; d >= 0; --d) total = static_cast<float>(parts[d * step]) + total / BASE;
  return total;
}

// Digits are read in runs of so many bytes.
constexpr int64_t RUN = 64;

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)

// The instruction takes inputs from 0 to 255, so each is 128 too large, as are the sums for it.
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

// x is [ROWS][in], weights [out][in] with one scale an output, y [ROWS][out].
template <class T, int ROWS>
void int8_rows(const T* x, const int8_t* weights, const T* scale, T* y, int64_t out, int64_t in) {
  static thread_local Digits made;
  constexpr int SUMS = ROWS * DIGITS<T>;
  const int64_t padded = (in + RUN - 1) / RUN * RUN;
  const auto finish = [=](const float* largest, int64_t n, auto& found) {
    constexpr int OUTPUTS = sizeof(found[0]) / sizeof(int32_t);
    for (int row = 0; row < ROWS; ++row) {
      const float unit = largest[row] / LARGEST;
      for (int i = 0; i < OUTPUTS; ++i) {
        const float total = joined<DIGITS<T>>(&found[row][i], ROWS * OUTPUTS);
        y[row * out + n + i] = static_cast<T>(total * unit * static_cast<float>(scale[n + i]));
      }
    }
  };
#ifdef DECODEKIT_TILES
  // Of four sums the loops below take 3.1 ms where tiles take 3.6, of ten 7.5 where they take 5.7.
  if (SUMS > 4 && in_tiles(out, in)) {
    made.of<T, ROWS>(x, in, in, 0);
    const float* largest = made.largest.data();
    const bool threads = out * in >= WORTH_THREADS;
    tile_sums<SUMS>(made.digits.data(), weights, out, in, threads, [=](int64_t n, auto& found) {
      finish(largest, n, found);
    });
    return;
  }
#endif
  made.of<T, ROWS>(x, in, padded, INPUT_OFFSET);
  const int8_t* digits = made.digits.data();
  const float* largest = made.largest.data();
  constexpr int AT_ONCE = SUMS <= 4 ? 4 : 1;
  each_output<AT_ONCE>(out, out * in * SUMS, [=](int64_t n, auto outputs) {
    int32_t found[SUMS][outputs()];
    each_row<SUMS, 2 * ROWS_AT_ONCE>([&](int first, auto count) {
      integer_sums<count(), outputs()>(digits + first * padded, padded, weights + n * in, in, found + first);
    });
    finish(largest, n, found);
  });
}

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
