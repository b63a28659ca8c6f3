// Products of the rows of tokens alone: rows of padding are not multiplied.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace decodekit {

// The rows of tokens among others.
template <class T>
struct TokenRows {
  std::vector<int64_t> places;
  std::vector<T> inputs, products;  // One row after the other.

  // Negative ids are padding.
  void find(const int64_t* ids, int64_t rows) {
    places.clear();
    for (int64_t row = 0; row < rows; ++row)
      if (ids[row] >= 0) places.push_back(row);
  }

  int64_t count() const { return places.size(); }
  bool is_run() const { return count() > 0 && places.back() - places.front() + 1 == count(); }

  void gather(const T* x, int64_t in) {
    grow(inputs, count() * in);
    for (int64_t i = 0; i < count(); ++i) std::copy_n(x + places[i] * in, in, inputs.data() + i * in);
  }

  void scatter(int64_t out, T* y) const {
    for (int64_t i = 0; i < count(); ++i) std::copy_n(products.data() + i * out, out, y + places[i] * out);
  }

  // Zeros for the other rows.
  void clear_padding(int64_t rows, int64_t out, T* y) const {
    int64_t next = 0;
    const auto clear_to = [&](int64_t row) { std::fill(y + next * out, y + row * out, static_cast<T>(0.0f)); };
    for (const int64_t place : places) {
      clear_to(place);
      next = place + 1;
    }
    clear_to(rows);
  }
};

template <class T>
TokenRows<T>& kept_token_rows() {
  static thread_local TokenRows<T> kept;
  return kept;
}

// Calls gemm(count, x, y) with the rows of tokens, which it multiplies; x is [rows][in], y [rows][out]. Rows of
// padding become zero, so that whatever reads them is finite. Without ids, all rows are multiplied.
template <class T, class Gemm>
void multiply_tokens(int64_t rows, const int64_t* ids, const T* x, T* y, int64_t out, int64_t in, Gemm gemm) {
  if (!ids) return gemm(rows, x, y);
  TokenRows<T>& tokens = kept_token_rows<T>();
  tokens.find(ids, rows);
  const int64_t count = tokens.count();
  if (tokens.is_run()) {
    gemm(count, x + tokens.places.front() * in, y + tokens.places.front() * out);
  } else if (count > 0) {
    tokens.gather(x, in);
    grow(tokens.products, count * out);
    gemm(count, tokens.inputs.data(), tokens.products.data());
    tokens.scatter(out, y);
  }
  tokens.clear_padding(rows, out, y);
}

}  // namespace decodekit
