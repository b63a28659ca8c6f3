// Products of rows by weights of shape [in][out], as GPT-2 and some mixtures of experts store them.
//
//     y[row][n] = sum over k of x[row][k] * weight[k][n]
//
// Each output is one sum over k in order, whatever the number of rows and threads.

#pragma once

#include <vector>

#include "float_vectors.h"
#include "gemm.h"

namespace decodekit {

// Outputs whose sums are kept at a time: two cache lines of 16-bit weights.
constexpr int64_t COLUMNS = 64;

// Sums of COUNT rows and VECTORS vectors of outputs.
template <class T, int COUNT, int VECTORS>
inline void column_sums(const float* x, const T* weights, int64_t in, int64_t out, float (*found)[COLUMNS]) {
  constexpr int64_t LANES = Floats::size();
  Floats sum[COUNT][VECTORS];
  for (auto& row : sum) std::fill(std::begin(row), std::end(row), Floats(0));
  for (int64_t k = 0; k < in; ++k) {
    Floats w[VECTORS];
    for (int i = 0; i < VECTORS; ++i) w[i] = as_floats(weights + k * out + i * LANES);
    for (int row = 0; row < COUNT; ++row)
      for (int i = 0; i < VECTORS; ++i) sum[row][i] = at::vec::fmadd(Floats(x[row * in + k]), w[i], sum[row][i]);
  }
  for (int row = 0; row < COUNT; ++row)
    for (int i = 0; i < VECTORS; ++i) sum[row][i].store(found[row] + i * LANES);
}

// The same for the last outputs, fewer than a vector.
template <class T, int COUNT>
inline void last_column_sums(
    const float* x, const T* weights, int64_t in, int64_t out, int64_t count, float (*found)[COLUMNS]) {
  Floats sum[COUNT];
  std::fill(std::begin(sum), std::end(sum), Floats(0));
  T kept[Floats::size()] = {};
  for (int64_t k = 0; k < in; ++k) {
    std::copy_n(weights + k * out, count, kept);
    const Floats w = as_floats(static_cast<const T*>(kept));
    for (int row = 0; row < COUNT; ++row) sum[row] = at::vec::fmadd(Floats(x[row * in + k]), w, sum[row]);
  }
  float all[Floats::size()];
  for (int row = 0; row < COUNT; ++row) {
    sum[row].store(all);
    std::copy_n(all, count, found[row]);
  }
}

// Outputs [n, end), at most COLUMNS, of COUNT rows.
template <class T, int COUNT>
inline void column_panel(
    const float* x, const T* weights, int64_t in, int64_t out, int64_t n, int64_t end, float (*found)[COLUMNS]) {
  constexpr int64_t LANES = Floats::size();
  constexpr int MOST = outputs_at_once(COUNT);
  const auto at = [&](int64_t first) { return reinterpret_cast<float(*)[COLUMNS]>(&found[0][first]); };
  int64_t first = n;
  for (; first + MOST * LANES <= end; first += MOST * LANES)
    column_sums<T, COUNT, MOST>(x, weights + first, in, out, at(first - n));
  for (; first + LANES <= end; first += LANES) column_sums<T, COUNT, 1>(x, weights + first, in, out, at(first - n));
  if (first < end) last_column_sums<T, COUNT>(x, weights + first, in, out, end - first, at(first - n));
}

// x is [rows][in], weights [in][out], y [rows][out].
template <class T>
void column_gemm(int64_t rows, const T* x, const T* weights, T* y, int64_t out, int64_t in) {
  static thread_local std::vector<float> converted;
  const float* inputs;
  if constexpr (std::is_same_v<T, float>) {
    inputs = x;
  } else {
    grow(converted, rows * in);
    widen(x, rows * in, converted.data());
    inputs = converted.data();
  }
#pragma omp parallel for schedule(static) if (out * in * rows >= WORTH_THREADS)
  for (int64_t n = 0; n < out; n += COLUMNS) {
    const int64_t end = std::min(n + COLUMNS, out);
    each_part_of_rows<ROWS_AT_ONCE>(rows, [=](int64_t first, auto count) {
      float found[count()][COLUMNS];
      column_panel<T, count()>(inputs + first * in, weights, in, out, n, end, found);
      for (int row = 0; row < count(); ++row)
        narrow(found[row], end - n, y + (first + row) * out + n);
    });
  }
}

}  // namespace decodekit
