// Products by float32, bfloat16 and float16 weights.

#pragma once

#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "fixed_floats.h"
#include "float_amx.h"
#include "float_vectors.h"
#include "gemm.h"
#include "horizontal_sums.h"

namespace decodekit {

// Sums of products of COUNT rows by OUTPUTS rows of weights, in single precision: `sums`. Weights are fetched `ahead`
// bytes before they are needed, in the order of their addresses; in AVX-512, for several rows by long rows of weights,
// which this would come too late for, in each of these.

// Bytes of weights that are read side by side, up to which they are fetched in order.
constexpr int64_t MOST_IN_ORDER = 2 * AHEAD;

using DefaultAhead = std::integral_constant<int64_t, AHEAD>;

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

template <class T, int COUNT, int OUTPUTS, class Bytes = DefaultAhead>
inline void sums(
    const typename Lanes<T>::Input* x, const T* weights, int64_t in, float (*found)[OUTPUTS], Bytes ahead = {}) {
  using L = Lanes<T>;
  __m512 sum[COUNT][OUTPUTS];
  for (int row = 0; row < COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = _mm512_setzero_ps();
  const bool in_order = OUTPUTS * in * sizeof(T) <= MOST_IN_ORDER;
  const int64_t step = in_order ? OUTPUTS : 1, apart = in_order ? L::COUNT : in;
  for (int64_t k = 0; k < in; k += L::COUNT) {
    const uint32_t kept = in - k >= L::COUNT ? ~0u >> (32 - L::COUNT) : (1u << (in - k)) - 1;
    typename L::Vector w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = L::weights(weights + n * in + k, kept);
      if constexpr (COUNT > 1) {
        fetch<2>(weights + k * step + n * apart, ahead);
      } else if (n * L::COUNT * sizeof(T) % CACHE_LINE == 0) {
        // Fetched twice, one row of float16 takes 8.5 ms instead of 7.4.
        fetch<1>(weights + k * OUTPUTS + n * L::COUNT);
      }
    }
    for (int row = 0; row < COUNT; ++row) {
      const typename L::Vector inputs = L::inputs(x + row * in + k, kept);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = L::add(sum[row][n], w[n], inputs);
    }
  }
  const auto total = [&](auto i) __attribute__((always_inline)) { return sum[i() / OUTPUTS][i() % OUTPUTS]; };
  sum_each<COUNT * OUTPUTS>(total, &found[0][0]);
}

#else

template <class T>
struct Lanes {
  using Input = float;
};

template <class T, int COUNT, int OUTPUTS, class Bytes = DefaultAhead>
inline void sums(const float* x, const T* weights, int64_t in, float (*found)[OUTPUTS], Bytes ahead = {}) {
  constexpr int64_t LANES = Floats::size();
  Floats sum[COUNT][OUTPUTS];
  for (int row = 0; row < COUNT; ++row)
    for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = Floats(0);
  int64_t k = 0;
  for (; k + LANES <= in; k += LANES) {
    Floats w[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) {
      w[n] = as_floats(weights + n * in + k);
      if (n * LANES * sizeof(T) % CACHE_LINE == 0) fetch<(COUNT > 1 ? 2 : 1)>(weights + k * OUTPUTS + n * LANES, ahead);
    }
    for (int row = 0; row < COUNT; ++row) {
      const Floats inputs = Floats::loadu(x + row * in + k);
      for (int n = 0; n < OUTPUTS; ++n) sum[row][n] = at::vec::fmadd(w[n], inputs, sum[row][n]);
    }
  }
  const auto total = [&](auto i) __attribute__((always_inline)) { return sum[i() / OUTPUTS][i() % OUTPUTS]; };
  sum_each<COUNT * OUTPUTS>(total, &found[0][0]);
  for (; k < in; ++k)
    for (int row = 0; row < COUNT; ++row)
      for (int n = 0; n < OUTPUTS; ++n) found[row][n] += static_cast<float>(weights[n * in + k]) * x[row * in + k];
}

#endif

// Outputs [begin, end) of COUNT rows.
template <class T, int COUNT, class Bytes>
inline void multiply_panel(
    const typename Lanes<T>::Input* x, const T* weights, T* y, int64_t out, int64_t in, int64_t begin, int64_t end,
    Bytes ahead) {
  each_run<outputs_at_once(COUNT)>(begin, end, [=](int64_t n, auto outputs) {
    float found[COUNT][outputs()];
    sums<T, COUNT, outputs()>(x, weights + n * in, in, found, ahead);
    for (int row = 0; row < COUNT; ++row) store_some<outputs()>(y + row * out + n, found[row]);
  });
}

// Fetching further ahead would evict the panel in use from the second-level cache.
constexpr int64_t MOST_AHEAD = 1 << 18;

// Most rows of a pass over the weights. With inputs of 16 bits, twice as many as usual are multiplied by half as many
// outputs: on Zen 5, nine of bfloat16 by 576 weights take 6.2 ms instead of 7.3 in two passes. With 32 bits, twelve
// take 11 to 13 instead of 10.
template <class T>
constexpr int ROWS_OF_A_PASS = sizeof(typename Lanes<T>::Input) == 2 ? 2 * ROWS_AT_ONCE : ROWS_AT_ONCE;

// Bytes of their inputs. On Zen 5, nine rows of bfloat16 by 4,096 weights take 20 ms in one pass instead of 13, as a
// first-level cache does not hold them.
constexpr int64_t MOST_INPUTS = 1 << 15;

template <class T>
inline bool in_one_pass(int64_t rows, int64_t in) {
  const int64_t bytes = rows * in * sizeof(typename Lanes<T>::Input);
  return rows <= ROWS_AT_ONCE || (rows <= ROWS_OF_A_PASS<T> && bytes <= MOST_INPUTS);
}

// More rows. The first part reads a panel from memory, the others from a cache. The second one
// fetches the next panel meanwhile, or its first MOST_AHEAD bytes, which later parts would only fetch again.
template <class T>
__attribute__((noinline)) void multiply_many(
    int64_t rows, const typename Lanes<T>::Input* x, const T* weights, T* y, int64_t out, int64_t in,
    bool in_threads) {
  each_panel(out, in_threads, [=](int64_t begin, int64_t end) {
    each_part_of_rows<ROWS_AT_ONCE>(rows, [=](int64_t first, auto count) {
      const auto multiply = [=](auto ahead) {
        multiply_panel<T, count()>(x + first * in, weights, y + first * out, out, in, begin, end, ahead);
      };
      const bool is_second = first > 0 && first <= ROWS_AT_ONCE;
      if (is_second) {
        multiply(std::min<int64_t>((end - begin) * in * sizeof(T), MOST_AHEAD));
      } else {
        multiply(DefaultAhead());
      }
    });
  });
}

// x is [rows][in], weights [out][in], y [rows][out].
template <class T>
void float_gemm(int64_t rows, const T* x, const T* weights, T* y, int64_t out, int64_t in) {
  const bool in_threads = out * in * rows >= WORTH_THREADS;
#ifdef DECODEKIT_FLOAT_TILES
  // With tiles, one row takes 6.0 ms where the loops below take 5.1, but five take 6.2 instead of 8.3, and
  // sixteen 7.5 instead of 22. The order of the sums differs, so all numbers of rows must use the same way.
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    if (in_float_tiles(out, in)) {
      tile_sums(rows, x, weights, out, in, in_threads, [=](int64_t n, int64_t first, int count, const auto& found) {
        for (int row = 0; row < count; ++row)
          store_fixed<TILE>(y + (first + row) * out + n, load_fixed<TILE>(found[row]));
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
    grow(converted, rows * in);
    widen(x, rows * in, converted.data());
    inputs = converted.data();
  }
  // Not inlined, nor is what follows multiply_panel(): GCC 12 orders the instructions of this loop so that one row
  // takes 10 % less time on two threads of Zen 4.
  if (!in_one_pass<T>(rows, in)) return multiply_many(rows, inputs, weights, y, out, in, in_threads);
  each_panel(out, in_threads, [=](int64_t begin, int64_t end) {
    each_part_of_rows<ROWS_OF_A_PASS<T>>(rows, [=](int64_t first, auto count) {
      each_run<outputs_at_once(count())>(begin, end, [=](int64_t n, auto outputs) {
        float found[count()][outputs()];
        sums<T, count(), outputs()>(inputs + first * in, weights + n * in, in, found);
        for (int row = 0; row < count(); ++row) store_some<outputs()>(y + (first + row) * out + n, found[row]);
      });
    });
  });
}

}  // namespace decodekit
