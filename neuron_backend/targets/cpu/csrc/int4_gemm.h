// Products by int4 weights, with a scale and a zero for each group of inputs.

#pragma once

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "float_vectors.h"
#include "gemm.h"
#include "int4_amx.h"
#include "int4_vectors.h"
#include "int8_split.h"

namespace decodekit {

constexpr float MIDDLE = 8;

// Rows whose totals are kept at a time.
constexpr int INT4_ROWS = 8;

// Digits of an input of type T.
template <class T>
constexpr int NIBBLE_DIGITS = sizeof(NibbleDigit) == 1 ? SPLIT_TERMS<T> : (SPLIT_TERMS<T> + 1) / 2;

// The value of a group's product, times BASE, from those of its digits: part(d) is that of digit d, the most
// significant first. Two terms are added without rounding, since a group's sums have few digits.
template <class T, class F>
inline auto join(F part) {
  using Numbers = decltype(part(0));
  const Numbers sum = sizeof(NibbleDigit) == 1 ? part(0) * Numbers(BASE) + part(1) : part(0);
  if constexpr (SPLIT_TERMS<T> == 2) {
    return sum;
  } else {
    return sum + part(NIBBLE_DIGITS<T> - 1) * Numbers(INVERSE);
  }
}

// The sum of the inputs of each group, [rows][groups], from their terms.
template <class T>
inline void sum_groups(int64_t rows, const int8_t* terms, int64_t in, float* sums) {
  const int64_t groups = in / GROUP;
#pragma omp parallel for schedule(static) if (rows * in >= WORTH_SPLITTING)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group < groups; ++group) {
      sums[row * groups + group] = join<T>([&](int d) {
        const int8_t* of = terms + (row * SPLIT_TERMS<T> + d) * in + group * GROUP;
        int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < GROUP; ++k) sum += of[k];
        return static_cast<float>(sum);
      });
    }
  }
}

// The same, and joins terms to digits of 16 bits.
template <class T>
inline void join_groups(int64_t rows, const int8_t* terms, int64_t in, int16_t* digits, float* sums) {
  constexpr int TERMS = SPLIT_TERMS<T>, DIGITS = (TERMS + 1) / 2;
#pragma omp parallel for schedule(static) if (rows * in >= WORTH_SPLITTING)
  for (int64_t row = 0; row < rows; ++row) {
    const int8_t* const of = terms + row * TERMS * in;
    int16_t* const to = digits + row * DIGITS * in;
    for (int64_t k = 0; k < in; k += GROUP) {
      float sum = static_cast<float>(join_terms(of + k, of + in + k, GROUP, to + k));
      if constexpr (TERMS > 2) sum += static_cast<float>(widen_terms(of + 2 * in + k, GROUP, to + in + k)) * INVERSE;
      sums[(row * in + k) / GROUP] = sum;
    }
  }
}

// Separates pairs of numbers: the first of each, and the second.
template <class T>
inline void separate(const T* pairs, Floats& first, Floats& second) {
  std::tie(first, second) = at::vec::deinterleave2(as_floats(pairs), as_floats(pairs + Floats::size()));
}

// A bfloat16 is the upper half of a float32. Converted and then separated, a product by one row takes 4 % longer on
// Zen 2.
inline void separate(const c10::BFloat16* pairs, Floats& first, Floats& second) {
  using Bits = uint32_t __attribute__((vector_size(Floats::size() * sizeof(float))));
  Bits both;
  std::memcpy(&both, pairs, sizeof both);
  const Bits lower_half = both << 16, upper_half = both & 0xffff0000u;
  first = Floats::loadu(&lower_half);
  second = Floats::loadu(&upper_half);
}

// The scales of one group of a block, and what stands for its zeros, from the scale and the value of integer 8 of
// each output.
struct GroupLevels {
  Floats scale[BLOCK / Floats::size()], zero[BLOCK / Floats::size()];

  template <class T>
  explicit GroupLevels(const T* levels) {
    constexpr int LANES = Floats::size();
    for (int part = 0; part < BLOCK / LANES; ++part) {
      Floats middle;
      separate(levels + 2 * LANES * part, scale[part], middle);
      zero[part] = middle - Floats(MIDDLE) * scale[part];
    }
  }
};

// Groups after which levels are read that are fetched now.
constexpr int64_t GROUPS_AHEAD = 3;

// The scale and the value of integer 8 of each group and output, [groups][outputs][2].
template <class T>
struct Levels {
  const T* of;
  int64_t groups, outputs;

  // Those of one group of a block. Fetches those of a later group, of the next block at the end: those of a block's
  // groups are far apart, which no processor foresees. Without, on Zen 2, a row waits for them most of its time.
  __attribute__((always_inline)) GroupLevels read(int64_t block, int64_t group) const {
    const int64_t later = group + GROUPS_AHEAD;
    const T* const next = later < groups ? at(block, later) : at(block + 1, later - groups);
    for (int64_t i = 0; i < 2 * BLOCK; i += CACHE_LINE / static_cast<int64_t>(sizeof(T))) fetch<1>(next + i, 0);
    return GroupLevels(at(block, group));
  }

 private:
  const T* at(int64_t block, int64_t group) const { return of + (group * outputs + block * BLOCK) * 2; }
};

// Adds one group to the totals [ROWS][BLOCK]: `found` are the sums of the digits, `inputs` the sums of a row's
// inputs, with row stride `apart`.
template <class T, int ROWS>
inline void add_group(
    const int32_t (*found)[BLOCK], const GroupLevels& levels, const float* inputs, int64_t apart,
    float (*total)[BLOCK]) {
  constexpr int LANES = Floats::size();
  for (int n = 0; n < BLOCK; n += LANES) {
    for (int row = 0; row < ROWS; ++row) {
      const Floats sum = join<T>([&](int d) { return as_floats(found[row * NIBBLE_DIGITS<T> + d] + n); });
      const Floats more = sum * levels.scale[n / LANES] + Floats(inputs[row * apart]) * levels.zero[n / LANES];
      (Floats::loadu(total[row] + n) + more).store(total[row] + n);
    }
  }
}

// Stores the totals of one row and block, times `unit`.
template <class T>
inline void store_block(const float* total, float unit, T* y) {
  const Floats factor(unit);
  for (int n = 0; n < BLOCK; n += 2 * Floats::size())
    store(y + n, as_floats(total + n) * factor, as_floats(total + n + Floats::size()) * factor);
}

#ifdef DECODEKIT_NIBBLE_TILES

// Rows that share the tiles of a group.
constexpr int TILED_ROWS = 32;

// Multiplies split inputs in tiles, to the same bits as the loops: sums of integers are exact.
template <class T>
void multiply_tiles(
    int64_t rows, const int8_t* terms, const float* largest, const float* inputs, const uint8_t* packed,
    Levels<T> levels, T* y, int64_t blocks, int64_t in, bool in_threads) {
  constexpr int TERMS = SPLIT_TERMS<T>;
  const int64_t groups = levels.groups, outputs = levels.outputs;
#pragma omp parallel if (in_threads)
  {
    const Tiles tiles(NIBBLE_TILES);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t first = 0; first < rows; first += TILED_ROWS) {
        const int64_t count = std::min<int64_t>(TILED_ROWS, rows - first);
        alignas(64) float total[TILED_ROWS][BLOCK] = {};
        for (int64_t group = 0; group < groups; ++group) {
          const NibbleTiles weights(packed + (block * in + group * GROUP) * HALF);
          const GroupLevels of = levels.read(block, group);
          each_part_of_rows<INT4_ROWS>(count, [&](int64_t begin, auto some) {
            alignas(64) int32_t found[(some() * TERMS + TILE - 1) / TILE * TILE][BLOCK];
            const int64_t row = first + begin;
            weights.sums(some() * TERMS, terms + row * TERMS * in + group * GROUP, in, found);
            add_group<T, some()>(found, of, inputs + row * groups + group, groups, total + begin);
          });
        }
        for (int64_t row = first; row < first + count; ++row)
          store_block(total[row - first], largest[row] / LARGEST / BASE, y + row * outputs + block * BLOCK);
      }
    }
  }
}

#endif

#ifdef DECODEKIT_NIBBLE_PAIRS

// Rows that share an unpacked group.
constexpr int UNPACKED_ROWS = 64;

// Vectors of outputs whose sums are kept in registers at a time.
constexpr int SPAN = 4;

// Adds one group of rows of 16-bit inputs, `in` apart, to their totals for SPAN vectors of outputs from vector `first`
// on: I counts the sums. `inputs` are the sums of the rows' inputs, `apart` from each other. Neither inlined nor a
// loop, and with every index a constant: otherwise GCC 12 moves all sums from register to register in every step.
template <std::size_t... I>
__attribute__((noinline)) void add_pairs(
    const int16_t* x, int64_t in, const Pairs& weights, int first, const GroupLevels& levels, const float* inputs,
    int64_t apart, float (*total)[BLOCK], std::index_sequence<I...>) {
  IntegerVector sum[sizeof...(I)];
  ((sum[I] = IntegerVector{}), ...);
#pragma GCC unroll 16
  for (int k = 0; k < GROUP; k += 2) {
    const auto pair = [=](int row) {
      int32_t two;
      std::memcpy(&two, x + row * in + k, sizeof two);
      return two;
    };
    ((sum[I] = add_products(sum[I], weights.of[k / 2][first + I % SPAN], pair(I / SPAN))), ...);
  }
  const auto add = [=, &levels](IntegerVector found, int row, int vector) {
    float* const to = total[row] + vector * Floats::size();
    const Floats zeros = Floats(inputs[row * apart]) * levels.zero[vector];
    (Floats::loadu(to) + (as_numbers(found) * levels.scale[vector] + zeros)).store(to);
  };
  (add(sum[I], I / SPAN, first + I % SPAN), ...);
}

// Multiplies many rows of 16-bit inputs, joined from two terms, to the same bits as the terms.
template <class T>
void multiply_pairs(
    int64_t rows, const int16_t* x, const float* largest, const float* inputs, const uint8_t* packed, Levels<T> levels,
    T* y, int64_t blocks, int64_t in, bool in_threads) {
  const int64_t groups = levels.groups, outputs = levels.outputs;
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t first = 0; first < rows; first += UNPACKED_ROWS) {
      const int64_t count = std::min<int64_t>(UNPACKED_ROWS, rows - first);
      alignas(64) float total[UNPACKED_ROWS][BLOCK] = {};
      for (int64_t group = 0; group < groups; ++group) {
        const Pairs weights(packed + (block * in + group * GROUP) * HALF);
        const GroupLevels of = levels.read(block, group);
        each_part_of_rows<PAIR_ROWS>(count, [&](int64_t begin, auto some) {
          const int64_t row = first + begin;
          for (int vector = 0; vector < BLOCK / Floats::size(); vector += SPAN)
            add_pairs(
                x + row * in + group * GROUP, in, weights, vector, of, inputs + row * groups + group, groups,
                total + begin, std::make_index_sequence<some() * SPAN>());
        });
      }
      for (int64_t row = first; row < first + count; ++row)
        store_block(total[row - first], largest[row] / LARGEST / BASE, y + row * outputs + block * BLOCK);
    }
  }
}

#endif

// x is [rows][in], `scales` as of Levels, y [rows][outputs]; outputs are those of all blocks.
template <class T>
void int4_gemm(int64_t rows, const T* x, const uint8_t* packed, const T* scales, T* y, int64_t blocks, int64_t in) {
  static thread_local Int8Split split;
  static thread_local std::vector<float> kept_inputs;
  constexpr int TERMS = SPLIT_TERMS<T>;
  const int64_t groups = in / GROUP, outputs = blocks * BLOCK;
  const Levels<T> levels{scales, groups, outputs};
  split.of<T>(rows, x, in, in);
  grow(kept_inputs, rows * groups);

  // Pointers, since the thread-local vectors of other threads are empty.
  const int8_t* const terms = split.terms.data();
  const float* const largest = split.largest.data();
  float* const inputs = kept_inputs.data();
  const bool in_threads = outputs * in * rows * TERMS >= WORTH_THREADS;
#ifdef DECODEKIT_NIBBLE_TILES
  // For six sums tiles take as long as the loops; for ten they take 3.7 ms where the loops take 5.0.
  const bool in_tiles = rows * TERMS > 6 && has_tiles();
#else
  [[maybe_unused]] constexpr bool in_tiles = false;
#endif
  const auto joined = [=] {
    static thread_local std::vector<int16_t> kept;
    grow(kept, rows * (TERMS + 1) / 2 * in);
    join_groups<T>(rows, terms, in, kept.data(), inputs);
    return static_cast<const int16_t*>(kept.data());
  };
#ifdef DECODEKIT_NIBBLE_PAIRS
  if constexpr (TERMS == 2) {
    if (rows > FEW_ROWS && !in_tiles)
      return multiply_pairs(rows, joined(), largest, inputs, packed, levels, y, blocks, in, in_threads);
  }
#endif
  constexpr int DIGITS = NIBBLE_DIGITS<T>;
  const NibbleDigit* digits;
  if constexpr (std::is_same_v<NibbleDigit, int16_t>) {
    digits = joined();
  } else {
    sum_groups<T>(rows, terms, in, inputs);
    digits = terms;
  }
#ifdef DECODEKIT_NIBBLE_TILES
  if (in_tiles) return multiply_tiles(rows, terms, largest, inputs, packed, levels, y, blocks, in, in_threads);
#endif
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t block = 0; block < blocks; ++block)
    each_part_of_rows<INT4_ROWS>(rows, [=](int64_t first, auto count) {
      constexpr int SUMS = count() * DIGITS;
      alignas(64) float total[count()][BLOCK] = {};
      for (int64_t group = 0; group < groups; ++group) {
        alignas(64) int32_t found[SUMS][BLOCK];
        each_of<SUMS, NIBBLE_SUMS>([&](int digit, auto some) {
          nibble_sums<some()>(
              digits + (first * DIGITS + digit) * in + group * GROUP, in, packed + (block * in + group * GROUP) * HALF,
              found + digit);
        });
        add_group<T, count()>(found, levels.read(block, group), inputs + first * groups + group, groups, total);
      }
      for (int row = 0; row < count(); ++row)
        store_block(total[row], largest[first + row] / LARGEST / BASE, y + (first + row) * outputs + block * BLOCK);
    });
}

}  // namespace decodekit
