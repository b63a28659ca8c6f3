// Products by int8 weights, with one scale per output.

#pragma once

#include <algorithm>

#include "four_floats.h"
#include "gemm.h"
#include "gemm_amx.h"
#include "int8_split.h"

namespace decodekit {

// Bytes of one vector of split inputs.
constexpr int64_t RUN = 64;

// Terms whose sums are kept in registers at a time; GCC 12 does not keep more there.
constexpr int TERMS_AT_ONCE = 4;

// Terms up to which reading the weights takes longer than multiplying.
constexpr int FEW_TERMS = 10;

#if defined(DECODEKIT_AVX512) && defined(__AVX512VNNI__)

// The instruction takes unsigned inputs, so 128 is added to each, and its share subtracted from the sums.
constexpr int INPUT_OFFSET = 128;

// The bytes of a vector that are weights, of those `left`.
inline __mmask64 kept_bytes(int64_t left) { return left >= RUN ? ~0ull : (1ull << left) - 1; }

// The sums of COUNT terms for OUTPUTS outputs, and for each output the share of the offset in its sums.
template <int COUNT, int OUTPUTS>
inline void sums_with_shares(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t* shares, int32_t (*found)[OUTPUTS]) {
  const __m512i one = _mm512_set1_epi8(1);
  __m512i sum[COUNT + 1][OUTPUTS];
  for (int row = 0; row <= COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_setzero_si512();
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = kept_bytes(in - k);
    __m512i w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = _mm512_maskz_loadu_epi8(kept, weights + n * in + k);
      fetch_ahead(weights + n * in + k);
      sum[COUNT][n] = _mm512_dpbusd_epi32(sum[COUNT][n], one, w[n]);
    }
    for (int row = 0; row < COUNT; ++row) {
      const __m512i inputs = _mm512_loadu_si512(x + row * padded + k);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_dpbusd_epi32(sum[row][n], inputs, w[n]);
    }
  }
  for (int n = 0; n < OUTPUTS; ++n) sum[COUNT][n] = _mm512_slli_epi32(sum[COUNT][n], 7);
  if constexpr (COUNT > 0) {
    const auto total = [&](auto i) __attribute__((always_inline)) {
      return _mm512_sub_epi32(sum[i() / OUTPUTS][i() % OUTPUTS], sum[COUNT][i() % OUTPUTS]);
    };
    sum_each<COUNT * OUTPUTS>(total, &found[0][0]);
  } else {
    sum_each<OUTPUTS>([&](auto n) __attribute__((always_inline)) { return sum[0][n()]; }, shares);
  }
}

// The sums of COUNT terms for OUTPUTS outputs.
template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, int32_t (*found)[OUTPUTS]) {
  sums_with_shares<COUNT, OUTPUTS>(x, padded, weights, in, nullptr, found);
}

// The share of the offset in each sum of OUTPUTS outputs.
template <int OUTPUTS>
inline void offset_shares(const int8_t* weights, int64_t in, int32_t* found) {
  sums_with_shares<0, OUTPUTS>(nullptr, 0, weights, in, found, nullptr);
}

// The same sums, given the shares.
template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, const int32_t* shares,
    int32_t (*found)[OUTPUTS]) {
  __m512i sum[COUNT][OUTPUTS];
  for (int row = 0; row < COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_setzero_si512();
  for (int64_t k = 0; k < in; k += RUN) {
    const __mmask64 kept = kept_bytes(in - k);
    __m512i w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) w[n] = _mm512_maskz_loadu_epi8(kept, weights + n * in + k);
    for (int row = 0; row < COUNT; ++row) {
      const __m512i inputs = _mm512_loadu_si512(x + row * padded + k);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_dpbusd_epi32(sum[row][n], inputs, w[n]);
    }
  }
  const auto total = [&](auto i) __attribute__((always_inline)) { return sum[i() / OUTPUTS][i() % OUTPUTS]; };
  sum_each<COUNT * OUTPUTS>(total, &found[0][0]);
  for (int row = 0; row < COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) found[row][n] -= shares[n];
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

template <int OUTPUTS>
inline void offset_shares(const int8_t*, int64_t, int32_t*) {}

template <int COUNT, int OUTPUTS>
inline void integer_sums(
    const int8_t* x, int64_t padded, const int8_t* weights, int64_t in, const int32_t*, int32_t (*found)[OUTPUTS]) {
  integer_sums<COUNT, OUTPUTS>(x, padded, weights, in, found);
}

#endif

// The outputs of a row from those of its terms.
template <class T, int OUTPUTS, class Sums>
inline void scale_sums(const Sums* found, float unit, const T* scale, T* y) {
  if constexpr (OUTPUTS == 1) {
    const float total = combine<SPLIT_TERMS<T>>([&](int d) { return static_cast<float>(found[d][0]); });
    *y = static_cast<T>(total * unit * static_cast<float>(*scale));
  } else {
    for (int n = 0; n < OUTPUTS; n += 4) {
      const Four total = combine<SPLIT_TERMS<T>>([&](int d) { return four(found[d] + n); });
      store_four(y + n, total * unit * four(scale + n));
    }
  }
}

// x is [rows][in], weights [out][in] with one scale per output, y [rows][out].
template <class T>
void int8_gemm(int64_t rows, const T* x, const int8_t* weights, const T* scale, T* y, int64_t out, int64_t in) {
  static thread_local Int8Split split;
  constexpr int TERMS = SPLIT_TERMS<T>;
#ifdef DECODEKIT_TILES
  // For up to six sums the loops below take as long; for ten they take 5.2 ms where tiles take 3.1. Sums of
  // integers are exact, so both give the same bits.
  if (rows * TERMS > 4 && in_tiles<int8_t>(out, in)) {
    constexpr int ROWS = TILE / TERMS;
    split.of<T>(rows, x, in, in, 0);
    const float* largest = split.largest.data();
    tile_sums<ROWS * TERMS>(
        rows * TERMS, split.terms.data(), in, weights, out, in, out * in >= WORTH_THREADS,
        [=](int64_t n, int64_t first, int count, const auto& found) {
          for (int i = 0; i < count / TERMS; ++i) {
            const int64_t row = first / TERMS + i;
            scale_sums<T, TILE>(found + i * TERMS, largest[row] / LARGEST, scale + n, y + row * out + n);
          }
        });
    return;
  }
#endif
  const int64_t padded = (in + RUN - 1) / RUN * RUN;
  split.of<T>(rows, x, in, padded, INPUT_OFFSET);
  const int8_t* terms = split.terms.data();
  const float* largest = split.largest.data();
  const bool in_threads = out * in * rows * TERMS >= WORTH_THREADS;
  const auto finish = [=](int64_t n, int64_t first, auto count, const auto& found) {
    constexpr int OUTPUTS = sizeof(found[0]) / sizeof(int32_t);
    for (int row = 0; row < count(); ++row)
      scale_sums<T, OUTPUTS>(
          found + row * TERMS, largest[first + row] / LARGEST, scale + n, y + (first + row) * out + n);
  };
  if (rows <= FEW_TERMS / TERMS) {
    // Read from memory: all terms at once.
    with_count<FEW_TERMS / TERMS>(rows, [&](auto count) {
      constexpr int ALL = count() * TERMS;
      each_panel(out, in_threads, [=](int64_t begin, int64_t end) {
        if constexpr (ALL <= TERMS_AT_ONCE) {
          each_run(begin, end, [&](int64_t n, auto outputs) {
            int32_t found[ALL][outputs()];
            integer_sums<ALL, outputs()>(terms, padded, weights + n * in, in, found);
            finish(n, 0, count, found);
          });
        } else {
          for (int64_t n = begin; n < end; ++n) {
            int32_t found[ALL][1];
            integer_sums<ALL, 1>(terms, padded, weights + n * in, in, found);
            finish(n, 0, count, found);
          }
        }
      });
    });
    return;
  }
  each_panel(out, in_threads, [=](int64_t begin, int64_t end) {
    int32_t shares[PANEL];
    each_run(begin, end, [&](int64_t n, auto outputs) {
      offset_shares<outputs()>(weights + n * in, in, shares + n - begin);
    });
    each_part_of_rows<std::max(1, TERMS_AT_ONCE / TERMS)>(rows, [&](int64_t first, auto count) {
      each_run(begin, end, [&](int64_t n, auto outputs) {
        int32_t found[count() * TERMS][outputs()];
        integer_sums<count() * TERMS, outputs()>(
            terms + first * TERMS * padded, padded, weights + n * in, in, shares + n - begin, found);
        finish(n, first, count, found);
      });
    });
  });
}

}  // namespace decodekit
