// Products of the rows of tokens alone: rows of padding are not multiplied.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace decodekit {

// Places of the tokens among ids, of which negative ones are padding.
inline void find_tokens(const int64_t* ids, int64_t count, std::vector<int64_t>& places) {
  places.clear();
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] >= 0) places.push_back(i);
}

// Calls gemm(count, x, y) with the rows of tokens, which it multiplies; x is [rows][in], y [rows][out]. Rows of
// padding become zero, so that whatever reads them is finite. Without ids, all rows are multiplied.
template <class T, class Gemm>
void multiply_tokens(int64_t rows, const int64_t* ids, const T* x, T* y, int64_t out, int64_t in, Gemm gemm) {
  static thread_local std::vector<int64_t> places;
  if (ids) find_tokens(ids, rows, places);
  if (!ids || static_cast<int64_t>(places.size()) == rows) return gemm(rows, x, y);
  const int64_t count = places.size();
  if (count == 0) return static_cast<void>(std::fill_n(y, rows * out, static_cast<T>(0.0f)));
  const int64_t first = places.front(), end = places.back() + 1;
  if (end - first == count) {
    std::fill_n(y, first * out, static_cast<T>(0.0f));
    gemm(count, x + first * in, y + first * out);
    return static_cast<void>(std::fill_n(y + end * out, (rows - end) * out, static_cast<T>(0.0f)));
  }
  static thread_local std::vector<T> inputs, products;
  grow(inputs, count * in);
  grow(products, count * out);
  for (int64_t i = 0; i < count; ++i) std::copy_n(x + places[i] * in, in, inputs.data() + i * in);
  gemm(count, inputs.data(), products.data());
  std::fill_n(y, rows * out, static_cast<T>(0.0f));
  for (int64_t i = 0; i < count; ++i) std::copy_n(products.data() + i * out, out, y + places[i] * out);
}

}  // namespace decodekit
