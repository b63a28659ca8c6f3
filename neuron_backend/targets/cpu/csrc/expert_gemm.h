// Products of rows by the weights of an expert each.

#pragma once

#include <vector>

#include "column_gemm.h"
#include "float_gemm.h"

namespace decodekit {

// Places of rows, ordered by expert.
struct RowsByExpert {
  std::vector<int64_t> begins;  // Of each expert, and the end of the last.
  std::vector<int64_t> rows;

  // Of those that is_token(row) is true for.
  template <class IsToken>
  void make(const int64_t* experts, int64_t count, int64_t most, IsToken is_token) {
    begins.assign(most + 1, 0);
    for (int64_t row = 0; row < count; ++row)
      if (is_token(row)) ++begins[experts[row] + 1];
    for (int64_t expert = 0; expert < most; ++expert) begins[expert + 1] += begins[expert];
    next_.assign(begins.begin(), begins.end() - 1);
    rows.resize(begins[most]);
    for (int64_t row = 0; row < count; ++row)
      if (is_token(row)) rows[next_[experts[row]]++] = row;
  }

 private:
  std::vector<int64_t> next_;
};

// x is [rows][in], y [rows][out], experts [rows], and weights `most` times [out][in], or [in][out] if by_columns.
// With the ids of columns, which have `each` rows one after the other, rows of padding become zero, and the weights
// of their experts are not read.
template <class T>
void expert_gemm(
    int64_t rows, const int64_t* ids, int64_t each, const T* x, const int64_t* experts, const T* weights, T* y,
    int64_t most, int64_t out, int64_t in, bool by_columns) {
  static thread_local RowsByExpert order;
  static thread_local std::vector<T> gathered, products;
  const auto is_token = [=](int64_t row) { return !ids || ids[row / each] >= 0; };
  order.make(experts, rows, most, is_token);
  const int64_t tokens = order.rows.size();
  grow(gathered, tokens * in);
  grow(products, tokens * out);
  for (int64_t i = 0; i < tokens; ++i) std::copy_n(x + order.rows[i] * in, in, gathered.data() + i * in);
  const auto gemm = by_columns ? column_gemm<T> : float_gemm<T>;
  for (int64_t expert = 0; expert < most; ++expert) {
    const int64_t first = order.begins[expert], count = order.begins[expert + 1] - first;
    if (count > 0)
      gemm(count, gathered.data() + first * in, weights + expert * out * in, products.data() + first * out, out, in);
  }
  for (int64_t row = 0; row < rows; ++row)
    if (!is_token(row)) std::fill_n(y + row * out, out, static_cast<T>(0.0f));
  for (int64_t i = 0; i < tokens; ++i) std::copy_n(products.data() + i * out, out, y + order.rows[i] * out);
}

}  // namespace decodekit
