// Products by int8 weights, with one scale per output.

#pragma once

#include <algorithm>
#include <vector>

#include "four_floats.h"
#include "gemm.h"
#include "gemm_amx.h"
#include "int8_panel.h"
#include "int8_split.h"
#include "int8_sums.h"

namespace decodekit {

// The outputs of a row from those of its terms.
template <class T, int OUTPUTS, class Sums, class Scale>
inline void scale_sums(const Sums* found, float unit, const Scale* scale, T* y) {
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

#ifdef DECODEKIT_VNNI

// Rows whose sums are kept at a time.
constexpr int64_t PANEL_ROWS = 240;

// Multiplies rows by the weights of VECTORS * LANES outputs; y is [rows][out].
template <class T, int VECTORS>
void multiply_panel(
    int64_t rows, const int8_t* terms, int64_t padded, const float* largest, const int8_t* weights, const T* scale, T* y,
    int64_t out, int64_t in) {
  constexpr int TERMS = SPLIT_TERMS<T>, OUTPUTS = VECTORS * LANES;
  static thread_local std::vector<int32_t, LineAllocator<int32_t>> kept;
  float scales[OUTPUTS];
  std::copy_n(scale, OUTPUTS, scales);
  for (int64_t begin = 0; begin < rows; begin += PANEL_ROWS) {
    const int64_t count = std::min(PANEL_ROWS, rows - begin);
    kept.assign(count * TERMS * OUTPUTS, 0);
    auto* const sums = reinterpret_cast<int32_t(*)[OUTPUTS]>(kept.data());
    for (int64_t k = 0; k < in; k += PANEL_INPUTS) {
      const Int8Panel<VECTORS> panel(weights + k, in, std::min(PANEL_INPUTS, in - k));
      each_part_of_rows<PANEL_TERMS / TERMS>(count, [&](int64_t first, auto some) {
        const int8_t* const of = terms + (begin + first) * TERMS * padded + k;
        panel.template add<some() * TERMS>(of, padded, sums + first * TERMS);
      });
    }
    for (int64_t row = 0; row < count; ++row)
      scale_sums<T, OUTPUTS>(sums + row * TERMS, largest[begin + row] / LARGEST, scales, y + (begin + row) * out);
  }
}

#endif

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
  const auto multiply = [=](int64_t begin, int64_t end) {
    each_part_of_rows<FEW_TERMS / TERMS>(rows, [&](int64_t first, auto count) {
      constexpr int ALL = count() * TERMS;
      each_run(begin, end, [&](int64_t n, auto outputs) {
        int32_t found[ALL][OUTPUTS_AT_ONCE];
        integer_sums<ALL>(terms + first * TERMS * padded, padded, weights + n * in, in, outputs(), found);
        for (int row = 0; row < count(); ++row)
          scale_sums<T, outputs()>(
              found + row * TERMS, largest[first + row] / LARGEST, scale + n, y + (first + row) * out + n);
      });
    });
  };
#ifdef DECODEKIT_VNNI
  if (rows > FEW_TERMS / TERMS) {
    each_panel(out, in_threads, [=](int64_t begin, int64_t end) {
      const auto by_panel = [&](auto vectors) {
        multiply_panel<T, vectors()>(rows, terms, padded, largest, weights + begin * in, scale + begin, y + begin, out, in);
        begin += vectors() * LANES;
      };
      if (end - begin >= 2 * LANES) by_panel(std::integral_constant<int, 2>());
      if (end - begin >= LANES) by_panel(std::integral_constant<int, 1>());
      multiply(begin, end);
    });
    return;
  }
#endif
  each_panel(out, in_threads, multiply);
}

}  // namespace decodekit
