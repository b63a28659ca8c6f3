// The largest numbers of each row, as torch selects them: by the same algorithm, so that ties fall alike.

#pragma once

#include <algorithm>
#include <vector>

#include <ATen/native/TopKImpl.h>
#include <c10/util/irange.h>

namespace decodekit {

// x is [rows][size], values and indices [rows][k], in descending order.
inline void top_k(int64_t rows, const float* x, float* values, int64_t* indices, int64_t size, int64_t k) {
  // The loop writes through pointers to bytes, and does not write the third.
  char* data[] = {(char*)values, (char*)indices, (char*)x};
  const int64_t strides[] = {k * 4, k * 8, size * 4};
  at::native::topk_impl_loop<float, float>(1, 1, 1, k, size, true, true, data, strides, rows);
}

}  // namespace decodekit
