// A program that calls one kernel for each request on its standard input: driver.py has the other side.
//
// A request is a row of int64: operation, way, threads, place, the bits of the scale and the cap, the number of ids,
// the ids, and the number of tensors; then each tensor: the number of dimensions, sizes, strides, bytes of an item,
// bytes of all, and the bytes; then the number of bytes of the result. The answer is 1 and the bytes of the result, or 0 if the kernel
// does not know the number of rows.

#include <cstdio>

#include <omp.h>

#include "exports.cpp"
#include "tensors.h"

namespace {

using driver::Memory;
using driver::Place;
using Tensors = std::vector<std::unique_ptr<AtenTensorOpaque>>;

enum Operation : int64_t { FLOATS, INT8, INT4, ATTENTION, COLUMNS, EXPERTS, EXPERT_COLUMNS };

// Of attention.
struct Scoring {
  double scale, cap;
};

// Longer than any request takes: a kernel that hangs is ended.
constexpr int SECONDS = 120;

void read(void* to, size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) std::abort();
}

int64_t number() {
  int64_t found;
  read(&found, sizeof found);
  return found;
}

std::vector<int64_t> numbers(int64_t count) {
  std::vector<int64_t> found(count);
  for (auto& each : found) each = number();
  return found;
}

std::unique_ptr<AtenTensorOpaque> tensor(Place place) {
  std::unique_ptr<AtenTensorOpaque> found(new AtenTensorOpaque);
  const int64_t dimensions = number();
  found->sizes = numbers(dimensions);
  found->strides = numbers(dimensions);
  found->item = number();
  const int64_t bytes = number();
  found->memory = std::make_unique<Memory>(bytes, place);
  read(found->memory->data(), bytes);
  found->memory->protect();
  return found;
}

// As Library in kernel_library.py calls them.
void call_functions(
    Operation operation, const Tensors& of, const std::vector<int64_t>& padded, const Scoring& scoring, void* y) {
  const auto at = [&](int i) -> void* { return of[i]->memory->data(); };
  const auto size = [&](int i, int dimension) { return of[i]->sizes.at(dimension); };
  const int64_t rows = size(0, 0);
  const int64_t* const ids = padded.empty() ? nullptr : padded.data();
  const int64_t each = padded.empty() ? 0 : rows / static_cast<int64_t>(padded.size());
  switch (operation) {
    case FLOATS:
      decodekit_float_gemm(rows, ids, at(0), at(1), y, size(1, 0), size(1, 1));
      return;
    case INT8:
      decodekit_int8_gemm(rows, ids, at(0), at(1), at(2), y, size(2, 0), size(0, 1));
      return;
    case INT4:
      decodekit_int4_gemm(rows, ids, at(0), at(1), at(2), y, size(1, 0), size(1, 1));
      return;
    case ATTENTION:
      decodekit_attention(
          ids, at(0), at(1), of[1]->strides.data(), at(2), of[2]->strides.data(), at(3), of[3]->strides.data(), y, rows,
          size(0, 1), size(0, 2), size(2, 1), size(2, 2), size(0, 3), size(2, 3), of.size() > 4 ? at(4) : nullptr,
          scoring.scale, scoring.cap);
      return;
    case COLUMNS:
      decodekit_column_gemm(rows, ids, at(0), at(1), y, size(1, 0), size(1, 1));
      return;
    case EXPERTS:
      decodekit_expert_gemm(rows, ids, each, at(0), at(1), at(2), y, size(2, 0), size(2, 1), size(2, 2), false);
      return;
    case EXPERT_COLUMNS:
      decodekit_expert_gemm(rows, ids, each, at(0), at(1), at(2), y, size(2, 0), size(2, 2), size(2, 1), true);
      return;
  }
  std::abort();
}

// As programs call them.
void call_operations(Operation operation, const Tensors& of, const Scoring& scoring) {
  const auto at = [&](int i) { return of[i].get(); };
  AtenTensorHandle y = nullptr;
  const auto succeed = [](AOTITorchError error) {
    if (error != 0) std::abort();
  };
  switch (operation) {
    case FLOATS:
      return succeed(aoti_torch_cpu_float_gemm(at(0), at(1), &y));
    case INT8:
      return succeed(aoti_torch_cpu_int8_gemm(at(0), at(1), at(2), &y));
    case INT4:
      return succeed(aoti_torch_cpu_int4_gemm(at(0), at(1), at(2), &y));
    case ATTENTION:
      if (of.size() > 4) {
        AtenTensorHandle sinks = at(4);
        return succeed(
            aoti_torch_cpu_attention(at(0), at(1), at(2), at(3), &sinks, scoring.scale, scoring.cap, &y));
      }
      return succeed(aoti_torch_cpu_attention(at(0), at(1), at(2), at(3), nullptr, scoring.scale, scoring.cap, &y));
    case COLUMNS:
      return succeed(aoti_torch_cpu_column_gemm(at(0), at(1), &y));
    case EXPERTS:
    case EXPERT_COLUMNS:
      return succeed(aoti_torch_cpu_expert_gemm(at(0), at(1), at(2), operation == EXPERT_COLUMNS, 0, &y));
  }
  std::abort();
}

void answer(const char* data, int64_t bytes) {
  std::fwrite(data, 1, bytes, stdout);
  std::fflush(stdout);
}

void serve(Operation operation) {
  const bool as_programs = number();
  omp_set_num_threads(static_cast<int>(number()));
  const Place place = driver::made_at = static_cast<Place>(number());
  Scoring scoring;
  read(&scoring, sizeof scoring);
  const std::vector<int64_t> ids = numbers(number());
  Tensors tensors(number());
  for (auto& each : tensors) each = tensor(place);
  const int64_t bytes = number();
  if (as_programs) {
    call_operations(operation, tensors, scoring);
    if (driver::made->memory->size() != bytes) std::abort();
    answer(driver::made->memory->data(), bytes);
    driver::made.reset();
  } else {
    const Memory y(bytes, place);
    call_functions(operation, tensors, ids, scoring, y.data());
    answer(y.data(), bytes);
  }
}

}  // namespace

int main() {
  int64_t operation;
  while (std::fread(&operation, sizeof operation, 1, stdin) == 1) {
    alarm(SECONDS);
    serve(static_cast<Operation>(operation));
    alarm(0);
  }
}
