// The products as programs and Python call them, for one dtype and the numbers of rows in ROWS.

#include <utility>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "float_rows.h"
#include "int4_rows.h"
#include "int8_rows.h"

namespace {

using decodekit::BLOCK;
using decodekit::GROUP;
using Number = DECODEKIT_NUMBER;
using Rows = std::integer_sequence<int, DECODEKIT_ROWS>;

// Calls f with the number of rows as a constant.
template <class F, int... KNOWN>
bool with_rows(int64_t rows, std::integer_sequence<int, KNOWN...>, F f) {
  return ((rows == KNOWN && (f(std::integral_constant<int, KNOWN>()), true)) || ...);
}

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

AtenTensorHandle empty_like_rows(AtenTensorHandle x, int64_t out) {
  const int64_t sizes[] = {size(x, 0), out}, strides[] = {out, 1};
  int32_t dtype = 0;
  aoti_torch_get_dtype(x, &dtype);
  AtenTensorHandle made = nullptr;
  aoti_torch_empty_strided(2, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &made);
  return made;
}

}  // namespace

extern "C" {

// True where the number of rows is one of those compiled for.

bool decodekit_float_rows(int64_t rows, const void* x, const void* weights, void* y, int64_t out, int64_t in) {
  return with_rows(rows, Rows(), [=](auto count) {
    decodekit::float_rows<Number, count()>(
        static_cast<const Number*>(x), static_cast<const Number*>(weights), static_cast<Number*>(y), out, in);
  });
}

bool decodekit_int8_rows(
    int64_t rows, const void* x, const void* weights, const void* scale, void* y, int64_t out, int64_t in) {
  return with_rows(rows, Rows(), [=](auto count) {
    decodekit::int8_rows<Number, count()>(
        static_cast<const Number*>(x), static_cast<const int8_t*>(weights), static_cast<const Number*>(scale),
        static_cast<Number*>(y), out, in);
  });
}

bool decodekit_int4_rows(
    int64_t rows, const void* x, const void* packed, const void* levels, void* y, int64_t blocks, int64_t in) {
  return with_rows(rows, Rows(), [=](auto count) {
    decodekit::int4_rows<Number, count()>(
        static_cast<const Number*>(x), static_cast<const uint8_t*>(packed), static_cast<const Number*>(levels),
        static_cast<Number*>(y), blocks, in);
  });
}

// The same as programs call operations: tensors in, a tensor out.

AOTITorchError aoti_torch_cpu_float_rows(AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle* y) {
  const int64_t out = size(weights, 0);
  *y = empty_like_rows(x, out);
  return !decodekit_float_rows(size(x, 0), data<void>(x), data<void>(weights), data<void>(*y), out, size(x, 1));
}

AOTITorchError aoti_torch_cpu_int8_rows(
    AtenTensorHandle x, AtenTensorHandle weights, AtenTensorHandle scale, AtenTensorHandle* y) {
  const int64_t out = size(weights, 0);
  *y = empty_like_rows(x, out);
  return !decodekit_int8_rows(
      size(x, 0), data<void>(x), data<void>(weights), data<void>(scale), data<void>(*y), out, size(x, 1));
}

AOTITorchError aoti_torch_cpu_int4_rows(
    AtenTensorHandle x, AtenTensorHandle packed, AtenTensorHandle levels, AtenTensorHandle* y) {
  const int64_t blocks = size(packed, 0);
  *y = empty_like_rows(x, blocks * BLOCK);
  return !decodekit_int4_rows(
      size(x, 0), data<void>(x), data<void>(packed), data<void>(levels), data<void>(*y), blocks, size(x, 1));
}

}
