// Products by int8 weights, with one scale per output.

#pragma once

#include <algorithm>
#include <vector>

#include "fixed_floats.h"
#include "gemm.h"
#include "int8_amx.h"
#include "int8_split.h"
#include "int8_sums.h"

namespace decodekit {

// Rearranges terms [COUNT][in] to [quads][COUNT][QUAD].
template <int COUNT>
inline void lay_terms(const int8_t* terms, int64_t in, int8_t* to) {
  for (int64_t k = 0; k < in; k += QUAD)
    for (int term = 0; term < COUNT; ++term) std::memcpy(to + k * COUNT + term * QUAD, terms + term * in + k, QUAD);
}

// Terms of rows as block_sums() reads them: those of each ROWS or fewer together, in the order of the rows.
struct LaidSplit {
  std::vector<int8_t, LineAllocator<int8_t>> laid;
  std::vector<float> largest;
  std::vector<int32_t> term_sums;

  template <class T, int ROWS>
  void of(int64_t rows, const T* x, int64_t in, int64_t padded) {
    constexpr int TERMS = SPLIT_TERMS<T>;
    grow(laid, rows * TERMS * padded);
    grow(largest, rows);
    grow(term_sums, rows * TERMS);
    // Pointers, since the thread-local vectors of other threads are empty.
    int8_t* const to = laid.data();
    float* const magnitudes = largest.data();
    int32_t* const sums = term_sums.data();
    each_part_in_threads<ROWS>(rows, rows * in >= WORTH_SPLITTING, [=](int64_t first, auto count) {
      static thread_local std::vector<int8_t, LineAllocator<int8_t>> terms;
      constexpr int COUNT = count() * TERMS;
      grow(terms, COUNT * padded);
      int8_t* const here = to + first * TERMS * padded;
      // Other threads have read the last product's terms there: a store to such a line waits until they drop it.
      for (int64_t i = 0; i < COUNT * padded; i += CACHE_LINE) __builtin_prefetch(here + i, 1);
      for (int row = 0; row < count(); ++row)
        split_row(
            x + (first + row) * in, in, padded, terms.data() + row * TERMS * padded, magnitudes + first + row,
            sums + (first + row) * TERMS);
      lay_terms<COUNT>(terms.data(), padded, here);
    });
  }
};

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

  // Stores a row's outputs from the sums of its terms.
  template <class T>
  void store(const int32_t (*found)[LANES], float unit, T* y) const {
    const auto total = combine<SPLIT_TERMS<T>>([=](int d) { return load_fixed<LANES>(found[d]); });
    const FixedFloats<LANES> values = total * unit * of;
    if (count == LANES) {
      store_fixed<LANES>(y, values);
    } else {
      T all[LANES];
      store_fixed<LANES>(all, values);
      std::copy_n(all, count, y);
    }
  }
};

// x is [rows][in], weights [blocks][quads][LANES][QUAD], with one scale per output, y [rows][out].
template <class T>
void int8_gemm(int64_t rows, const T* x, const uint8_t* weights, const T* scale, T* y, int64_t out, int64_t in) {
  constexpr int TERMS = SPLIT_TERMS<T>;
  const int64_t blocks = (out + LANES - 1) / LANES, quads = (in + QUAD - 1) / QUAD, padded = quads * QUAD;
  const bool in_threads = out * in * rows * TERMS >= WORTH_THREADS;
  // Stores `count` rows of one block from their sums; `largest` are the magnitudes of all rows.
  const auto finish = [=](const float* largest, int64_t block, int64_t first, int64_t count, const auto* found) {
    const int64_t n = block * LANES;
    const BlockScales scales(scale + n, out - n);
    for (int64_t row = 0; row < count; ++row)
      scales.store(found + row * TERMS, largest[first + row] / LARGEST, y + (first + row) * out + n);
  };
#ifdef DECODEKIT_TILES
  // For up to four terms the loops below take as long. Sums of integers are exact, so both give the same bits.
  if (rows * TERMS > 4 && in_int8_tiles(blocks, in)) {
    static thread_local Int8Split split;
    split.of<T>(rows, x, in, padded);
    const float* const largest = split.largest.data();
    with_count<TILE / TERMS>(rows, [=](auto most) {
      int8_tile_sums<most() * TERMS>(
          rows * TERMS, split.terms.data(), split.term_sums.data(), in, weights, blocks, in_threads,
          [=](int64_t block, int64_t first, const int32_t (*found)[LANES]) {
            const int64_t row = first / TERMS;
            finish(largest, block, row, std::min<int64_t>(most(), rows - row), found);
          });
    });
    return;
  }
#endif
  constexpr int ROWS = TERMS_AT_ONCE / TERMS;
  static thread_local LaidSplit split;
  split.of<T, ROWS>(rows, x, in, padded);
  const int8_t* const laid = split.laid.data();
  const float* const largest = split.largest.data();
  const int32_t* const term_sums = split.term_sums.data();
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t block = 0; block < blocks; ++block)
    each_part_of_rows<ROWS>(rows, [=](int64_t first, auto count) {
      alignas(64) int32_t found[count() * TERMS][LANES];
      block_sums<count() * TERMS>(
          laid + first * TERMS * padded, term_sums + first * TERMS, weights + block * padded * LANES, quads,
          first == 0 ? AHEAD : 0, found);
      finish(largest, block, first, count(), found);
    });
}

}  // namespace decodekit
