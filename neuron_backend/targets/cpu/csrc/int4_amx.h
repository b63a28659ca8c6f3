// Sums of products of int4 weights in AMX tiles: 16 outputs by the 32 inputs of a group, by up to 16 rows.

#pragma once

#include "int4_vectors.h"
#include "amx.h"

#if defined(DECODEKIT_TILES) && defined(DECODEKIT_NIBBLES)
#define DECODEKIT_NIBBLE_TILES

namespace decodekit {

// Tiles 0 to 3 hold sums of 16 outputs each, tile 4 inputs, tiles 5 to 7 weights.
inline constexpr TileSizes NIBBLE_TILES({
    {TILE, 4 * TILE}, {TILE, 4 * TILE}, {TILE, 4 * TILE}, {TILE, 4 * TILE},
    {TILE, GROUP},    {GROUP / 4, 64},  {GROUP / 4, 64},  {GROUP / 4, 64},
});

// The weights of one group, unpacked for tiles.
struct NibbleTiles {
  alignas(64) uint8_t parts[4][GROUP / 4][64];

  explicit NibbleTiles(const uint8_t* packed) {
    for (int k = 0; k < GROUP; k += 4)
      each_part(packed + k * HALF, [&](int part, __m512i weights) { _mm512_store_si512(parts[part][k / 4], weights); });
    // The intrinsic that loads a tile does not tell the compiler that it reads memory.
    asm volatile("" ::: "memory");
  }

  // Sums of the group's inputs, [count][BLOCK], as nibble_sums; reads and writes whole tiles of rows.
  void sums(int count, const int8_t* x, int64_t in, int32_t (*found)[BLOCK]) const {
    for (int first = 0; first < count; first += TILE) {
      int32_t* to = found[first];
      _tile_loadd(4, x + first * in, in);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(5, parts[0], 64);
      _tile_dpbssd(0, 4, 5);
      _tile_loadd(6, parts[1], 64);
      _tile_dpbssd(1, 4, 6);
      _tile_loadd(7, parts[2], 64);
      _tile_dpbssd(2, 4, 7);
      _tile_loadd(5, parts[3], 64);
      _tile_dpbssd(3, 4, 5);
      _tile_stored(0, to, 4 * BLOCK);
      _tile_stored(1, to + TILE, 4 * BLOCK);
      _tile_stored(2, to + 2 * TILE, 4 * BLOCK);
      _tile_stored(3, to + 3 * TILE, 4 * BLOCK);
    }
  }
};

}  // namespace decodekit

#endif
