// C functions that programs and Python call: products by weights and attention, for one dtype.

#include <initializer_list>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "attention.h"
#include "column_gemm.h"
#include "expert_gemm.h"
#include "float_gemm.h"
#include "int4_gemm.h"
#include "int8_gemm.h"
#include "padding.h"
#include "top_k.h"

namespace {

using decodekit::BLOCK;
using Number = DECODEKIT_NUMBER;

template <class T>
T* data(AtenTensorHandle tensor) {
  void* found = nullptr;
  aoti_torch_get_data_ptr(tensor, &found);
  return static_cast<T*>(found);
}

int64_t size(AtenTensorHandle tensor, int64_t dimension) {
  int64_t found = 0;
  aoti_torch_get_size(tensor, dimension, &found);
  return found;
}

decodekit::Strided<Number> strided(const void* data, const int64_t* strides) {
  return {static_cast<const Number*>(data), {strides[0], strides[1], strides[2]}};
}

const int64_t* strides(AtenTensorHandle tensor) {
  int64_t* found = nullptr;
  aoti_torch_get_strides(tensor, &found);
  return found;
}

template <class Gemm>
void multiply_tokens(int64_t rows, const void* ids, const void* x, void* y, int64_t out, int64_t in, Gemm gemm) {
  decodekit::multiply_tokens(
      rows, static_cast<const int64_t*>(ids), static_cast<const Number*>(x), static_cast<Number*>(y), out, in, gemm);
}

// An uninitialised contiguous tensor.
AtenTensorHandle empty(int32_t dtype, std::initializer_list<int64_t> sizes) {
  int64_t strides[4] = {1, 1, 1, 1};
  for (int i = static_cast<int>(sizes.size()) - 2; i >= 0; --i) strides[i] = strides[i + 1] * sizes.begin()[i + 1];
  AtenTensorHandle made = nullptr;
  aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides, dtype, aoti_torch_device_type_cpu(), 0, &made);
  return made;
}

AtenTensorHandle empty(AtenTensorHandle like, std::initializer_list<int64_t> sizes) {
  int32_t dtype = 0;
  aoti_torch_get_dtype(like, &dtype);
  return empty(dtype, sizes);
}

}  // namespace

extern "C" {

// Functions that get the ids of rows do not compute rows of padding, which become zero; without (null), they do.

void decodekit_float_gemm(
    int64_t rows, const void* ids, const void* x, const void* weights, void* y, int64_t out, int64_t in) {
  multiply_tokens(rows, ids, x, y, out, in, [=](int64_t count, const Number* inputs, Number* products) {
    decodekit::float_gemm<Number>(count, inputs, static_cast<const Number*>(weights), products, out, in);
  });
}

void decodekit_column_gemm(
    int64_t rows, const void* ids, const void* x, const void* weights, void* y, int64_t in, int64_t out) {
  multiply_tokens(rows, ids, x, y, out, in, [=](int64_t count, const Number* inputs, Number* products) {
    decodekit::column_gemm<Number>(count, inputs, static_cast<const Number*>(weights), products, out, in);
  });
}

void decodekit_expert_gemm(
    int64_t rows, const void* ids, int64_t each, const void* x, const void* experts, const void* weights, void* y,
    int64_t most, int64_t out, int64_t in, int64_t by_columns) {
  decodekit::expert_gemm<Number>(
      rows, static_cast<const int64_t*>(ids), each, static_cast<const Number*>(x),
      static_cast<const int64_t*>(experts), static_cast<const Number*>(weights), static_cast<Number*>(y), most, out,
      in, by_columns);
}

void decodekit_top_k(int64_t rows, const void* x, void* values, void* indices, int64_t size, int64_t k) {
  decodekit::top_k(
      rows, static_cast<const float*>(x), static_cast<float*>(values), static_cast<int64_t*>(indices), size, k);
}

void decodekit_int8_gemm(
    int64_t rows, const void* ids, const void* x, const void* weights, const void* scale, void* y, int64_t out,
    int64_t in) {
  multiply_tokens(rows, ids, x, y, out, in, [=](int64_t count, const Number* inputs, Number* products) {
    decodekit::int8_gemm<Number>(
        count, inputs, static_cast<const uint8_t*>(weights), static_cast<const Number*>(scale), products, out, in);
  });
}

void decodekit_int4_gemm(
    int64_t rows, const void* ids, const void* x, const void* packed, const void* levels, void* y, int64_t blocks,
    int64_t in) {
  multiply_tokens(rows, ids, x, y, blocks * BLOCK, in, [=](int64_t count, const Number* inputs, Number* products) {
    decodekit::int4_gemm<Number>(
        count, inputs, static_cast<const uint8_t*>(packed), static_cast<const Number*>(levels), products, blocks, in);
  });
}

// Strides of the first three dimensions. Sinks are a score for each head, or null. Ids are [batch][width], or null.

void decodekit_attention(
    const void* ids, const void* query, const void* keys, const int64_t* key_strides, const void* values,
    const int64_t* value_strides, const void* mask, const int64_t* mask_strides, void* y, int64_t batch,
    int64_t width, int64_t heads, int64_t groups, int64_t slots, int64_t key_dim, int64_t value_dim,
    const void* sinks, double scale, double cap) {
  decodekit::attention<Number>(
      static_cast<const Number*>(query), strided(keys, key_strides), strided(values, value_strides),
      strided(mask, mask_strides), {static_cast<const int64_t*>(ids), width}, static_cast<Number*>(y),
      {batch, width, heads, groups, slots, key_dim, value_dim},
      {static_cast<float>(scale), static_cast<float>(cap), sinks});
}

// The same with the interface that programs use to call operations: tensors in, a tensor out.

AOTITorchError aoti_torch_cpu_float_gemm(AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle* y) {
  const int64_t out = size(weights, 0);
  *y = empty(x, {size(x, 0), out});
  decodekit_float_gemm(size(x, 0), nullptr, data<void>(x), data<void>(weights), data<void>(*y), out, size(x, 1));
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_column_gemm(AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle* y) {
  const int64_t out = size(weights, 1);
  *y = empty(x, {size(x, 0), out});
  decodekit_column_gemm(size(x, 0), nullptr, data<void>(x), data<void>(weights), data<void>(*y), size(x, 1), out);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_expert_gemm(
    AtenTensorHandle x, AtenTensorHandle experts, AtenTensorHandle weights, int32_t by_columns, int64_t each,
    AtenTensorHandle* y) {
  const int64_t out = size(weights, by_columns ? 2 : 1);
  *y = empty(x, {size(x, 0), out});
  decodekit_expert_gemm(
      size(x, 0), nullptr, each, data<void>(x), data<void>(experts), data<void>(weights), data<void>(*y),
      size(weights, 0), out, size(x, 1), by_columns);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_top_k(
    AtenTensorHandle x, int64_t k, AtenTensorHandle* values, AtenTensorHandle* indices) {
  const int64_t rows = size(x, 0);
  *values = empty(x, {rows, k});
  *indices = empty(aoti_torch_dtype_int64(), {rows, k});
  decodekit_top_k(rows, data<void>(x), data<void>(*values), data<void>(*indices), size(x, 1), k);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_int8_gemm(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scale, AtenTensorHandle* y) {
  const int64_t out = size(scale, 0);
  *y = empty(x, {size(x, 0), out});
  decodekit_int8_gemm(
      size(x, 0), nullptr, data<void>(x), data<void>(weights), data<void>(scale), data<void>(*y), out, size(x, 1));
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_int4_gemm(
    AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle levels, AtenTensorHandle* y) {
  const int64_t blocks = size(packed, 0);
  *y = empty(x, {size(x, 0), blocks * BLOCK});
  decodekit_int4_gemm(
      size(x, 0), nullptr, data<void>(x), data<void>(packed), data<void>(levels), data<void>(*y), blocks, size(x, 1));
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_cpu_attention(
    AtenTensorHandle query, AtenTensorHandle keys, AtenTensorHandle values, AtenTensorHandle mask,
    AtenTensorHandle* sinks, double scale, double cap, AtenTensorHandle* y) {
  const int64_t batch = size(query, 0), width = size(query, 1), heads = size(query, 2), dim = size(values, 3);
  *y = empty(query, {batch, width, heads, dim});
  decodekit_attention(
      nullptr, data<void>(query), data<void>(keys), strides(keys), data<void>(values), strides(values),
      data<void>(mask), strides(mask), data<void>(*y), batch, width, heads, size(keys, 1), size(keys, 2),
      size(query, 3), dim, sinks ? data<void>(*sinks) : nullptr, scale, cap);
  return AOTI_TORCH_SUCCESS;
}

}
