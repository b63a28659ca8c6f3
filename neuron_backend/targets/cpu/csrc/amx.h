// Tiles of numbers that one instruction multiplies, on processors with AMX.

#pragma once

namespace decodekit {

constexpr int TILE = 16;

// Rows in as few parts of up to TILE as they need, all of one size: together they may be a few more.
template <int ROWS>
struct EqualParts {
  static constexpr int COUNT = (ROWS + TILE - 1) / TILE, SIZE = (ROWS + COUNT - 1) / COUNT, ALL = COUNT * SIZE;
};

}  // namespace decodekit

#if !defined(DECODEKIT_PORTABLE) && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_INT8__)
#define DECODEKIT_TILES

#include <cstdint>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace decodekit {

// Whether the system lets this process have tiles; asked once.
inline bool has_tiles() {
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;
  static const bool found = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return found;
}

struct TileSize {
  int rows, bytes;
};

// Of the eight tiles, as the processor reads it. To be a constant: the intrinsic tells the compiler of its
// first bytes alone, so that others would not have to be written before.
struct alignas(64) TileSizes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr explicit TileSizes(const TileSize (&sizes)[8]) {
    for (int tile = 0; tile < 8; ++tile) {
      rows[tile] = sizes[tile].rows;
      bytes[tile] = sizes[tile].bytes;
    }
  }
};

// Tiles of these sizes, for as long as this lives, in one thread.
struct Tiles {
  explicit Tiles(const TileSizes& sizes) { _tile_loadconfig(&sizes); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

}  // namespace decodekit

#endif
