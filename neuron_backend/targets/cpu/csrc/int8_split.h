// Split of inputs into int8 terms, for integer weights.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <new>
#include <vector>

#include <c10/util/Half.h>

#include "amx.h"
#include "float_vectors.h"
#include "gemm.h"

namespace decodekit {

// An input is (t0 + t1 / 254 + t2 / 254^2) / 127 times its row's largest magnitude, with terms from -127 to 127: a
// rounding remainder of at most 1/2, times 254, is a term again. Each term is one more row of a product of
// integers, whose sums are exact, so a row's result does not depend on the order of its sums. Two terms hold 15
// bits below the largest magnitude, for dtypes of 8 or 11 significant bits; three hold 23 of float32's 24.

constexpr float LARGEST = 127;
constexpr float BASE = 254;
constexpr float INVERSE = static_cast<float>(1.0 / 254);

template <class T>
constexpr int SPLIT_TERMS = sizeof(T) == 4 ? 3 : 2;

// Allocates whole cache lines: a vector that lies in two of them takes twice as long to load.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t LINE{CACHE_LINE};
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
  void deallocate(T* of, std::size_t) { ::operator delete(of, LINE); }
  friend bool operator==(LineAllocator, LineAllocator) { return true; }
};

// Numbers whose split is worth a second thread.
constexpr int64_t WORTH_SPLITTING = 1 << 14;

// x in a type whose conversion to float32 GCC vectorises: float16 is widened into memory that the next call overwrites.
template <class T>
inline const T* vectorisable(const T* x, int64_t) {
  return x;
}

inline const float* vectorisable(const c10::Half* x, int64_t count) {
  static thread_local std::vector<float> wide;
  grow(wide, count);
  widen(x, count, wide.data());
  return wide.data();
}

// Splits one row into [SPLIT_TERMS][padded], and keeps its largest magnitude and the sum of each term.
template <class T>
void split_row(const T* x, int64_t in, int64_t padded, int8_t* terms, float* largest, int32_t* sums) {
  static thread_local std::vector<float> kept;
  grow(kept, in);
  // int8_t may alias anything; without __restrict the loops are not vectorised.
  float* __restrict rest = kept.data();
  const auto* of = vectorisable(x, in);
  float most = FLT_MIN, unordered = 0;
#pragma omp simd reduction(max : most) reduction(+ : unordered)
  for (int64_t k = 0; k < in; ++k) {
    const float value = static_cast<float>(of[k]);
    most = std::max(most, std::fabs(value));
    unordered += value - value;
  }
  // NaN or infinity in any input makes the row's results NaN, whatever its terms: zeros, since no integer is the
  // quotient.
  *largest = most + unordered;
#pragma omp simd
  for (int64_t k = 0; k < in; ++k) rest[k] = static_cast<float>(of[k]) / most * LARGEST;
  if (unordered != 0) std::fill_n(rest, in, 0.0f);
  for (int d = 0; d < SPLIT_TERMS<T>; ++d) {
    int8_t* __restrict to = terms + d * padded;
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < in; ++k) {
      const float rounded = std::nearbyint(rest[k]);
      const int32_t term = static_cast<int32_t>(rounded);
      to[k] = static_cast<int8_t>(term);
      sum += term;
      rest[k] = (rest[k] - rounded) * BASE;
    }
    std::fill(to + in, to + padded, 0);
    sums[d] = sum;
  }
}

// Terms of several rows: term d of row r begins at [(r * SPLIT_TERMS + d) * padded]. Zeros fill each up to `padded`.
// Memory for TILE more, of any contents, follows, since tiles are loaded whole.
struct Int8Split {
  std::vector<int8_t, LineAllocator<int8_t>> terms;
  std::vector<float> largest;
  std::vector<int32_t> term_sums;

  template <class T>
  void of(int64_t rows, const T* x, int64_t in, int64_t padded) {
    grow(terms, (rows * SPLIT_TERMS<T> + TILE) * padded);
    grow(largest, rows);
    grow(term_sums, rows * SPLIT_TERMS<T>);
    // Pointers, since the thread-local vectors of other threads are empty.
    int8_t* const to = terms.data();
    float* const magnitudes = largest.data();
    int32_t* const sums = term_sums.data();
#pragma omp parallel for schedule(static) if (rows * in >= WORTH_SPLITTING)
    for (int64_t row = 0; row < rows; ++row)
      split_row(
          x + row * in, in, padded, to + row * SPLIT_TERMS<T> * padded, magnitudes + row,
          sums + row * SPLIT_TERMS<T>);
  }
};

// BASE to the power of `exponent`.
constexpr double power_of_base(int exponent) { return exponent == 0 ? 1 : BASE * power_of_base(exponent - 1); }

// The value of 1 in the last of a row's terms, relative to the row's largest magnitude.
template <int TERMS>
constexpr double UNIT = 1 / (LARGEST * power_of_base(TERMS - 1));

// Joins two terms of `count` inputs to integers of 16 bits, and returns their sum.
inline int32_t join_terms(const int8_t* first, const int8_t* second, int64_t count, int16_t* __restrict to) {
  int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) sum += to[k] = static_cast<int16_t>(first[k] * int(BASE) + second[k]);
  return sum;
}

// The same of one term.
inline int32_t widen_terms(const int8_t* terms, int64_t count, int16_t* __restrict to) {
  int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < count; ++k) sum += to[k] = terms[k];
  return sum;
}

}  // namespace decodekit
