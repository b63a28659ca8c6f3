// Skinny GEMM over int4 weights, with a scale and a zero for each group of inputs.

#pragma once

#include <vector>

#include "int8_split.h"
#include "float_vectors.h"
#include "int4_amx.h"
#include "int4_vectors.h"
#include "skinny_gemm.h"

namespace decodekit {

constexpr float MIDDLE = 8;

// The sum of the inputs of each group, [ROWS][groups], from split inputs of COUNT terms.
template <int COUNT, int ROWS>
inline void sum_groups(const int8_t* terms, int64_t in, float* sums) {
  const int64_t groups = in / GROUP;
  for (int row = 0; row < ROWS; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      sums[row * groups + group] = combine<COUNT>([&](int d) {
        const int8_t* of = terms + (d * ROWS + row) * in + group * GROUP;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < GROUP; ++k) sum += of[k];
        return static_cast<float>(sum);
      });
    }
  }
}

// Adds one group to the totals [ROWS][BLOCK]: `found` are the sums of the terms, `levels` the scale and the
// value of integer 8 of each output, `inputs` the sums of a row's inputs, with row stride `apart`.
template <class T, int ROWS>
inline void add_group(
    const int32_t (*found)[BLOCK], const T* levels, const float* inputs, int64_t apart, float (*total)[BLOCK]) {
  constexpr int LANES = Floats::size();
  for (int n = 0; n < BLOCK; n += LANES) {
    const T* of = levels + 2 * n;
    const auto [scale, middle] = at::vec::deinterleave2(as_floats(of), as_floats(of + LANES));
    const Floats zero = middle - Floats(MIDDLE) * scale;
    for (int row = 0; row < ROWS; ++row) {
      const Floats sum = combine<SPLIT_TERMS<T>>([&](int d) { return as_floats(found[d * ROWS + row] + n); });
      const Floats more = sum * scale + Floats(inputs[row * apart]) * zero;
      (Floats::loadu(total[row] + n) + more).store(total[row] + n);
    }
  }
}

// x is [ROWS][in], levels [groups][outputs][2], y [ROWS][outputs]; outputs are those of all blocks.
template <class T, int ROWS>
void int4_gemm(const T* x, const uint8_t* packed, const T* levels, T* y, int64_t blocks, int64_t in) {
  static thread_local Int8Split split;
  static thread_local std::vector<float> kept_inputs;
  constexpr int SUMS = ROWS * SPLIT_TERMS<T>;
  using Parts = EqualParts<SUMS>;
  const int64_t groups = in / GROUP, outputs = blocks * BLOCK;
  split.of<T, ROWS>(x, in, in, 0);
  kept_inputs.resize(ROWS * groups);
  sum_groups<SPLIT_TERMS<T>, ROWS>(split.terms.data(), in, kept_inputs.data());

  // Pointers, since the thread-local vectors of other threads are empty.
  const int8_t* const terms = split.terms.data();
  const float* const largest = split.largest.data();
  const float* const inputs = kept_inputs.data();
  // Multiplies one block of outputs; sums(x, packed, found) computes the sums of one group, [SUMS][BLOCK].
  const auto multiply = [=](int64_t block, auto sums) {
    alignas(64) float total[ROWS][BLOCK] = {};
    for (int64_t group = 0; group < groups; ++group) {
      alignas(64) int32_t found[Parts::ALL][BLOCK];
      sums(terms + group * GROUP, packed + (block * in + group * GROUP) * HALF, found);
      const T* of = levels + (group * outputs + block * BLOCK) * 2;
      add_group<T, ROWS>(found, of, inputs + group, groups, total);
    }
    for (int row = 0; row < ROWS; ++row) {
      const Floats unit(largest[row] / LARGEST);
      for (int n = 0; n < BLOCK; n += 2 * Floats::size()) {
        const float* of = total[row] + n;
        store(
            y + row * outputs + block * BLOCK + n, as_floats(of) * unit, as_floats(of + Floats::size()) * unit);
      }
    }
  };
  const bool threads = outputs * in * SUMS >= WORTH_THREADS;
#ifdef DECODEKIT_NIBBLE_TILES
  // For six sums tiles take as long as the loops; for ten they take 3.7 ms where the loops take 5.0.
  if (SUMS > 6 && has_tiles()) {
#pragma omp parallel if (threads)
    {
      const Tiles tiles(NIBBLE_TILES<Parts::SIZE>);
#pragma omp for schedule(static)
      for (int64_t block = 0; block < blocks; ++block)
        multiply(block, [=](const int8_t* of, const uint8_t* weights, int32_t (*found)[BLOCK]) {
          nibble_tile_sums<Parts::SIZE, Parts::COUNT>(of, in, weights, found);
        });
    }
    return;
  }
#endif
#pragma omp parallel for schedule(static) if (threads)
  for (int64_t block = 0; block < blocks; ++block)
    multiply(block, [=](const int8_t* of, const uint8_t* weights, int32_t (*found)[BLOCK]) {
      each_row<SUMS, 4>([&](int first, auto count) {
        nibble_sums<count()>(of + first * in, in, weights, found + first);
      });
    });
}

}  // namespace decodekit
