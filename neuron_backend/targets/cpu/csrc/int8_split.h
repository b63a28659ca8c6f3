// Split of inputs into int8 terms, for integer weights.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "skinny_gemm.h"
#include "amx.h"

namespace decodekit {

// The same operations in the same order as in quantization/int8_activation_split.py, so that results are
// bit-identical.

constexpr float LARGEST = 127;
constexpr float BASE = 254;
constexpr float INVERSE = static_cast<float>(1.0 / 254);

template <class T>
constexpr int SPLIT_TERMS = sizeof(T) == 4 ? 3 : 2;

// Terms of ROWS rows: term d of row r begins at [(d * ROWS + r) * padded]. Zeros fill rows up to `padded`,
// and the number of rows up to equal parts. `offset` is added to each term, modulo 256.
struct Int8Split {
  std::vector<int8_t> terms;
  std::vector<float> largest;
  std::vector<float> wide;

  template <class T, int ROWS>
  void of(const T* x, int64_t in, int64_t padded, int offset) {
    terms.assign(EqualParts<SPLIT_TERMS<T> * ROWS>::ALL * padded, 0);
    largest.resize(ROWS);
    wide.resize(in);
    // int8_t may alias anything; without __restrict the loops are not vectorised.
    float* __restrict rest = wide.data();
    for (int row = 0; row < ROWS; ++row) {
      const T* from = x + row * in;
      float most = FLT_MIN, unordered = 0;
#pragma omp simd reduction(max : most) reduction(+ : unordered)
      for (int64_t k = 0; k < in; ++k) {
        rest[k] = static_cast<float>(from[k]);
        most = std::max(most, std::fabs(rest[k]));
        unordered += rest[k] - rest[k];
      }
      // NaN or infinity in any input makes the row's results NaN, whatever its terms: zeros, since no integer
      // is the quotient.
      largest[row] = most + unordered;
      if (unordered != 0) std::fill_n(rest, in, 0.0f);
#pragma omp simd
      for (int64_t k = 0; k < in; ++k) rest[k] = rest[k] / most * LARGEST;
      for (int d = 0; d < SPLIT_TERMS<T>; ++d) {
        int8_t* __restrict to = terms.data() + (d * ROWS + row) * padded;
#pragma omp simd
        for (int64_t k = 0; k < in; ++k) {
          const float term = std::nearbyint(rest[k]);
          to[k] = static_cast<int8_t>(static_cast<int32_t>(term) + offset);
          rest[k] = (rest[k] - term) * BASE;
        }
      }
    }
  }
};

// The value of a product from those of its terms: part(d) is that of term d, the most significant first.
template <int COUNT, class F>
inline auto combine(F part) {
  auto total = part(COUNT - 1);
  for (int d = COUNT - 2; d >= 0; --d) total = part(d) + total * decltype(total)(INVERSE);
  return total;
}

}  // namespace decodekit
