// Sums of products by int8 weights in AMX tiles: 16 outputs by up to 16 terms.

#pragma once

#include "amx.h"
#include "gemm.h"
#include "int8_blocks.h"

#ifdef DECODEKIT_TILES

#include <algorithm>

namespace decodekit {

// Whether weights of that size consist of whole tiles, two at a time.
inline bool in_int8_tiles(int64_t blocks, int64_t in) { return blocks >= 2 && in % LINE == 0 && has_tiles(); }

// Tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 inputs of COUNT terms.
template <int COUNT>
inline constexpr TileSizes INT8_TILES({
    {COUNT, LINE}, {COUNT, LINE}, {COUNT, LINE}, {COUNT, LINE},
    {TILE, LINE},  {TILE, LINE},  {COUNT, LINE}, {COUNT, LINE},
});

// Calls finish(block, first, sums) with sums [COUNT][LANES] of the terms from `first` on, for every block of weights
// and every COUNT terms. The last pair of blocks may overlap the one before.
//
// terms is [count][in], followed by memory for a whole tile; `term_sums` are the sums of the terms.
template <int COUNT, class F>
void int8_tile_sums(
    int64_t count, const int8_t* terms, const int32_t* term_sums, int64_t in, const uint8_t* weights, int64_t blocks,
    bool in_threads, F finish) {
  constexpr int64_t TILE_BYTES = TILE * LINE;
  const int64_t steps = in / LINE, pairs = (blocks + 1) / 2;
#pragma omp parallel if (in_threads)
  {
    const Tiles tiles(INT8_TILES<COUNT>);
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t block = std::min(2 * pair, blocks - 2);
      const uint8_t* const left = weights + block * in * LANES;
      const uint8_t* const right = left + in * LANES;
      for (int64_t first = 0; first < count; first += COUNT) {
        const int8_t* const of = terms + first * in;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        // Alternate steps add to separate sums, since an addition waits for the previous one.
        for (int64_t step = 0; step < steps; step += 2) {
          _tile_loadd(6, of + step * LINE, in);
          _tile_loadd(4, left + step * TILE_BYTES, LINE);
          _tile_dpbsud(0, 6, 4);
          _tile_loadd(5, right + step * TILE_BYTES, LINE);
          _tile_dpbsud(1, 6, 5);
          if (step + 1 == steps) break;
          _tile_loadd(7, of + (step + 1) * LINE, in);
          _tile_loadd(4, left + (step + 1) * TILE_BYTES, LINE);
          _tile_dpbsud(2, 7, 4);
          _tile_loadd(5, right + (step + 1) * TILE_BYTES, LINE);
          _tile_dpbsud(3, 7, 5);
        }
        alignas(64) int32_t found[4][COUNT][LANES];
        _tile_stored(0, found[0], LINE);
        _tile_stored(1, found[1], LINE);
        _tile_stored(2, found[2], LINE);
        _tile_stored(3, found[3], LINE);
        for (int side = 0; side < 2; ++side) {
          for (int64_t term = 0; term < std::min<int64_t>(COUNT, count - first); ++term) {
            const uint32_t share = share_of(term_sums[first + term]);
            for (int n = 0; n < LANES; ++n)
              found[side][term][n] = uint32_t(found[side][term][n]) + found[side + 2][term][n] - share;
          }
          finish(block + side, first, found[side]);
        }
      }
    }
  }
}

}  // namespace decodekit

#endif
