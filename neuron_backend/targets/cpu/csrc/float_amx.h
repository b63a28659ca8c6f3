// Products by bfloat16 weights in AMX tiles of 16 outputs by up to 16 rows: rows cost little beside reading the
// weights, whose layout stays [out][in].
//
// A tile of weights is 16 outputs by 64 bytes of inputs; the inputs of all rows are rearranged once to match.
// Two tiles of weights are multiplied by each tile of inputs, and alternate blocks add to separate sums,
// since an addition waits for the previous one.

#pragma once

#include "amx.h"
#include "gemm.h"
#include "transpose.h"

#if defined(DECODEKIT_TILED) && defined(DECODEKIT_TILES) && defined(__AMX_BF16__)
#define DECODEKIT_FLOAT_TILES

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <c10/util/BFloat16.h>

namespace decodekit {

// Bytes of a row of a tile.
constexpr int TILE_ROW = 64;

// Whether weights of that size consist of whole tiles, two at a time.
inline bool in_float_tiles(int64_t out, int64_t in) {
  return out >= 2 * TILE && in * sizeof(c10::BFloat16) % TILE_ROW == 0 && has_tiles();
}

// Tiles 0 to 3 hold sums, 4 and 5 weights, 6 and 7 inputs of COLUMNS rows.
template <int COLUMNS>
inline constexpr TileSizes WEIGHT_TILES({
    {TILE, COLUMNS * 4}, {TILE, COLUMNS * 4}, {TILE, COLUMNS * 4}, {TILE, COLUMNS * 4},
    {TILE, TILE_ROW},  {TILE, TILE_ROW},  {TILE, COLUMNS * 4}, {TILE, COLUMNS * 4},
});

// Calls finish(n, first, count, sums) with sums [count][TILE] for every run of TILE outputs from n on and every
// part of the rows, of COLUMNS; the last may have fewer. The last two runs of outputs start early enough to be
// whole, and so may overlap those before.
//
// x is [rows][in], weights [out][in].
template <int COLUMNS, class F>
void tile_sums_of(
    int64_t parts, int64_t rows, const c10::BFloat16* x, const c10::BFloat16* weights, int64_t out, int64_t in,
    bool in_threads, F finish) {
  constexpr int64_t LAID = TILE * COLUMNS * 4;
  const int64_t bytes = in * sizeof *weights, blocks = bytes / TILE_ROW, pairs = (out + 2 * TILE - 1) / (2 * TILE);
  // Inputs in groups of four bytes, the rows' groups adjacent.
  static thread_local std::vector<char> laid;
  laid.assign(parts * blocks * LAID, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const char* of = reinterpret_cast<const char*>(x + row * in);
    char* to = laid.data() + row / COLUMNS * blocks * LAID + row % COLUMNS * 4;
    for (int64_t k = 0; k < bytes; k += 4) std::memcpy(to + k * COLUMNS, of + k, 4);
  }
  const char* inputs = laid.data();
#pragma omp parallel if (in_threads)
  {
    const Tiles tiles(WEIGHT_TILES<COLUMNS>);
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t n = std::min(pair * 2 * TILE, out - 2 * TILE);
      const char* first = reinterpret_cast<const char*>(weights + n * in);
      const char* second = first + TILE * bytes;
      for (int64_t part = 0; part < parts; ++part) {
        const char* by = inputs + part * blocks * LAID;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t block = 0; block < blocks; block += 2) {
          _tile_loadd(6, by + block * LAID, COLUMNS * 4);
          _tile_loadd(4, first + block * TILE_ROW, bytes);
          _tile_loadd(5, second + block * TILE_ROW, bytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 5, 6);
          if (block + 1 == blocks) break;
          _tile_loadd(7, by + (block + 1) * LAID, COLUMNS * 4);
          _tile_loadd(4, first + (block + 1) * TILE_ROW, bytes);
          _tile_loadd(5, second + (block + 1) * TILE_ROW, bytes);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
        alignas(64) float sums[4][TILE][TILE];
        _tile_stored(0, sums[0], sizeof sums[0][0]);
        _tile_stored(1, sums[1], sizeof sums[0][0]);
        _tile_stored(2, sums[2], sizeof sums[0][0]);
        _tile_stored(3, sums[3], sizeof sums[0][0]);
        const int count = static_cast<int>(std::min<int64_t>(COLUMNS, rows - part * COLUMNS));
        for (int run = 0; run < 2; ++run) {
          __m512i added[TILE], columns[TILE];
          for (int i = 0; i < TILE; ++i)
            added[i] =
                _mm512_castps_si512(_mm512_add_ps(_mm512_load_ps(sums[run][i]), _mm512_load_ps(sums[run + 2][i])));
          transpose(added, columns);
          alignas(64) float found[TILE][TILE];
          for (int column = 0; column < COLUMNS; ++column) _mm512_store_si512(found[column], columns[column]);
          finish(n + run * TILE, part * COLUMNS, count, found);
        }
      }
    }
  }
}

// The same in parts of up to TILE rows.
template <class F>
void tile_sums(
    int64_t rows, const c10::BFloat16* x, const c10::BFloat16* weights, int64_t out, int64_t in, bool in_threads,
    F finish) {
  const int64_t parts = (rows + TILE - 1) / TILE;
  with_count<TILE>(parts > 1 ? TILE : rows, [&](auto columns) {
    tile_sums_of<columns()>(parts, rows, x, weights, out, in, in_threads, finish);
  });
}

}  // namespace decodekit

#endif
