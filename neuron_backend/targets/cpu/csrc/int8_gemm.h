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

// Bytes that are asked for early: what the first-level cache holds.
constexpr int64_t ASKED_FOR = 1 << 15;

// Memory for laid terms. Caches of other threads hold the lines that these read in the last product: asked for before
// rows are split, they are here when terms are laid.
inline int8_t* memory_for_laid(int64_t bytes) {
  static thread_local std::vector<int8_t, LineAllocator<int8_t>> kept;
  grow(kept, bytes);
  for (int64_t i = 0; i < std::min(bytes, ASKED_FOR); i += CACHE_LINE) __builtin_prefetch(kept.data() + i, 1);
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
  static thread_local Int8Split split;
  constexpr int TERMS = SPLIT_TERMS<T>;
  const int64_t blocks = (out + LANES - 1) / LANES, quads = (in + QUAD - 1) / QUAD, padded = quads * QUAD;
#ifdef DECODEKIT_TILES
  // For up to four terms the loops below take as long. Sums of integers are exact, so both give the same bits.
  const bool in_tiles = rows * TERMS > 4 && in_int8_tiles(blocks, in);
#else
  constexpr bool in_tiles = false;
#endif
  int8_t* const laid = in_tiles ? nullptr : memory_for_laid(rows * TERMS * padded);
  split.of<T>(rows, x, in, padded);

  // Pointers, since the thread-local vectors of other threads are empty.
  const int8_t* const terms = split.terms.data();
  const float* const largest = split.largest.data();
  const int32_t* const term_sums = split.term_sums.data();
  const bool in_threads = out * in * rows * TERMS >= WORTH_THREADS;
  // Stores `count` rows of one block from their sums.
  const auto finish = [=](int64_t block, int64_t first, int64_t count, const int32_t (*found)[LANES]) {
    const int64_t n = block * LANES;
    const BlockScales scales(scale + n, out - n);
    for (int64_t row = 0; row < count; ++row)
      scales.store(found + row * TERMS, largest[first + row] / LARGEST, y + (first + row) * out + n);
  };
#ifdef DECODEKIT_TILES
  if (in_tiles) {
    with_count<TILE / TERMS>(rows, [=](auto most) {
      int8_tile_sums<most() * TERMS>(
          rows * TERMS, terms, term_sums, in, weights, blocks, in_threads,
          [=](int64_t block, int64_t first, const int32_t (*found)[LANES]) {
            const int64_t row = first / TERMS;
            finish(block, row, std::min<int64_t>(most(), rows - row), found);
          });
    });
    return;
  }
#endif
  constexpr int ROWS = TERMS_AT_ONCE / TERMS;
  each_part_in_threads<ROWS>(rows, rows * in >= WORTH_SPLITTING, [=](int64_t first, auto count) {
    const int64_t begin = first * TERMS * padded;
    lay_terms<count() * TERMS>(terms + begin, padded, laid + begin);
  });
#pragma omp parallel for schedule(static) if (in_threads)
  for (int64_t block = 0; block < blocks; ++block)
    each_part_of_rows<ROWS>(rows, [=](int64_t first, auto count) {
      alignas(64) int32_t found[count() * TERMS][LANES];
      block_sums<count() * TERMS>(
          laid + first * TERMS * padded, term_sums + first * TERMS, weights + block * padded * LANES, quads,
          first == 0 ? AHEAD : 0, found);
      finish(block, first, count(), found);
    });
}

}  // namespace decodekit
