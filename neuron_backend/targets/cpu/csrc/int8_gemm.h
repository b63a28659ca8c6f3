// Products by int8 weights, with one scale per output.

#pragma once

#include <algorithm>
#include <vector>

#include "fixed_floats.h"
#include "gemm.h"
#include "int8_amx.h"
#include "int8_blocks.h"
#include "int8_digits.h"
#include "int8_split.h"
#include "int8_sums.h"

namespace decodekit {

// Bytes that are asked for early: what the first-level cache holds.
constexpr int64_t ASKED_FOR = 1 << 15;

// Memory for digits. Caches of other threads hold the lines that these read in the last product: asked for before
// rows are split, they are here when digits are laid.
inline Digit* memory_for_digits(int64_t count) {
  static thread_local std::vector<Digit, LineAllocator<Digit>> kept;
  grow(kept, count);
  const int64_t bytes = std::min<int64_t>(count * sizeof(Digit), ASKED_FOR);
  for (int64_t i = 0; i < bytes; i += CACHE_LINE) __builtin_prefetch((const char*)kept.data() + i, 1);
  return kept.data();
}

// Scales of a block's outputs, of which the last block may have fewer.
struct BlockScales {
  FixedFloats<LANES> of;
  int64_t count;

  template <class T>
  BlockScales(const T* scale, int64_t most) : count(std::min<int64_t>(LANES, most)) {
    if (count == LANES) {
      of = load_fixed<LANES>(scale);
    } else {
      T all[LANES] = {};
      std::copy_n(scale, count, all);
      of = load_fixed<LANES>(all);
    }
  }

  // Stores a row's outputs from their exact sums and its largest magnitude.
  template <class T>
  void store(const double (&sums)[LANES], float largest, T* y) const {
    float rounded[LANES];
#pragma omp simd
    for (int n = 0; n < LANES; ++n) rounded[n] = static_cast<float>(sums[n] * UNIT<SPLIT_TERMS<T>>);
    const FixedFloats<LANES> values = load_fixed<LANES>(rounded) * largest * of;
    if (count == LANES) {
      store_fixed<LANES>(y, values);
    } else {
      T all[LANES];
      store_fixed<LANES>(all, values);
      std::copy_n(all, count, y);
    }
  }
};

// Adds the sums of the COUNT digits of a row to its exact sums, or begins those: up to 2^53 float64 has every integer.
template <int COUNT>
inline void add_digits(const int32_t (*found)[LANES], bool begin, double (&sums)[LANES]) {
  for (int digit = 0; digit < COUNT; ++digit) {
    const double worth = power_of_base(COUNT - 1 - digit);
    // Not cleared first: GCC 12 clears them by a string instruction, which takes long to start.
    if (begin && digit == 0) {
#pragma omp simd
      for (int n = 0; n < LANES; ++n) sums[n] = found[digit][n] * worth;
    } else {
#pragma omp simd
      for (int n = 0; n < LANES; ++n) sums[n] += found[digit][n] * worth;
    }
  }
}

// x is [rows][in], weights [blocks][quads][LANES][QUAD], with one scale per output, y [rows][out].
template <class T>
void int8_gemm(int64_t rows, const T* x, const uint8_t* weights, const T* scale, T* y, int64_t out, int64_t in) {
  static thread_local Int8Split split;
  constexpr int TERMS = SPLIT_TERMS<T>;
  const int64_t blocks = (out + LANES - 1) / LANES, quads = (in + QUAD - 1) / QUAD, padded = quads * QUAD;
#ifdef DECODEKIT_TILES
  // For up to four terms the loops below take as long. Sums of integers are exact, so both give the same bits.
  const bool in_tiles = rows * TERMS > 4 && in_int8_tiles(blocks, in);
#else
  constexpr bool in_tiles = false;
#endif
  Digit* const digits = in_tiles ? nullptr : memory_for_digits(rows * DIGITS<TERMS> * padded);
  split.of<T>(rows, x, in, padded);

  // Pointers, since the thread-local vectors of other threads are empty.
  const int8_t* const terms = split.terms.data();
  const float* const largest = split.largest.data();
  const int32_t* const term_sums = split.term_sums.data();
  const bool in_threads = out * in * rows * TERMS >= WORTH_THREADS;
  // Stores `count` rows of one block from their exact sums.
  const auto finish = [=](int64_t block, int64_t first, int64_t count, const double (*sums)[LANES]) {
    const int64_t n = block * LANES;
    const BlockScales scales(scale + n, out - n);
    for (int64_t row = 0; row < count; ++row)
      scales.store(sums[row], largest[first + row], y + (first + row) * out + n);
  };
#ifdef DECODEKIT_TILES
  if (in_tiles) {
    with_count<TILE / TERMS>(rows, [=](auto most) {
      int8_tile_sums<most() * TERMS>(
          rows * TERMS, terms, term_sums, in, weights, blocks, in_threads,
          [=](int64_t block, int64_t first, const int32_t (*found)[LANES]) {
            const int64_t row = first / TERMS, count = std::min<int64_t>(most(), rows - row);
            double sums[most()][LANES];
            for (int64_t i = 0; i < count; ++i) add_digits<TERMS>(found + i * TERMS, true, sums[i]);
            finish(block, row, count, sums);
          });
    });
    return;
  }
#endif
  static thread_local std::vector<int32_t> kept_starts;
  constexpr int COUNT = DIGITS<TERMS>, ROWS = DIGITS_AT_ONCE / COUNT;
  const int64_t chunks = chunks_of(padded);
  grow(kept_starts, rows * COUNT * chunks);
  int32_t* const starts = kept_starts.data();
  each_part_in_threads<ROWS>(rows, rows * in >= WORTH_SPLITTING, [=](int64_t first, auto count) {
    lay_digits<count(), TERMS>(
        terms + first * TERMS * padded, term_sums + first * TERMS, padded, digits + first * COUNT * padded,
        starts + first * COUNT * chunks);
  });
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t block = 0; block < blocks; ++block)
    each_part_of_rows<ROWS>(rows, [=](int64_t first, auto count) {
      double sums[count()][LANES];
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t begin = chunk * CHUNK, end = std::min(begin + CHUNK, padded);
        alignas(64) int32_t found[count() * COUNT][LANES];
        block_sums<count() * COUNT>(
            digits + (first * padded + begin * count()) * COUNT, starts + (first * chunks + chunk * count()) * COUNT,
            weights + (block * padded + begin) * LANES, (end - begin) / QUAD, first == 0 ? AHEAD : 0, found);
        for (int row = 0; row < count(); ++row) add_digits<COUNT>(found + row * COUNT, chunk == 0, sums[row]);
      }
      finish(block, first, count(), sums);
    });
}

}  // namespace decodekit
