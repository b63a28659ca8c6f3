// The few functions on tensors that the kernels' exports call, without torch.

#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "placed_memory.h"

struct AtenTensorOpaque {
  std::vector<int64_t> sizes, strides;
  int64_t item;
  std::unique_ptr<driver::Memory> memory;
};

namespace driver {

// Where tensors are placed that a kernel makes.
inline Place made_at = Place::END;

// The tensor that a kernel made last.
inline std::unique_ptr<AtenTensorOpaque> made;

// A function of each of the numbers of a vector.
template <class Vector, class F>
Vector of_each(Vector vector, F f) {
  float numbers[sizeof(Vector) / sizeof(float)];
  std::memcpy(numbers, &vector, sizeof vector);
  for (float& number : numbers) number = f(number);
  std::memcpy(&vector, numbers, sizeof vector);
  return vector;
}

}  // namespace driver

extern "C" {

// Of the library of vector functions that torch brings.
#ifdef __AVX512F__
__m512 Sleef_tanhf16_u10(__m512 x) {
  return driver::of_each(x, [](float number) { return std::tanh(number); });
}
#endif
#ifdef __AVX2__
__m256 Sleef_tanhf8_u10(__m256 x) {
  return driver::of_each(x, [](float number) { return std::tanh(number); });
}
#endif

int32_t aoti_torch_device_type_cpu() { return 0; }

int32_t aoti_torch_dtype_int64() { return 8; }

AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** found) {
  *found = tensor->memory->data();
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_get_size(AtenTensorHandle tensor, int64_t dimension, int64_t* found) {
  *found = tensor->sizes.at(dimension);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** found) {
  *found = tensor->strides.data();
  return AOTI_TORCH_SUCCESS;
}

// A dtype is known by its bytes alone.
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* found) {
  *found = static_cast<int32_t>(tensor->item);
  return AOTI_TORCH_SUCCESS;
}

AOTITorchError aoti_torch_empty_strided(
    int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t, int32_t,
    AtenTensorHandle* found) {
  int64_t last = 0;
  for (int64_t i = 0; i < dimensions; ++i) last += (sizes[i] - 1) * strides[i];
  driver::made.reset(new AtenTensorOpaque{
      {sizes, sizes + dimensions}, {strides, strides + dimensions}, dtype,
      std::make_unique<driver::Memory>((last + 1) * dtype, driver::made_at)});
  *found = driver::made.get();
  return AOTI_TORCH_SUCCESS;
}

}
