// AMX tiles: configuration, and detection at run time.

#pragma once

namespace decodekit {

constexpr int TILE = 16;

}  // namespace decodekit

#if !defined(DECODEKIT_PORTABLE) && !defined(DECODEKIT_NO_TILES) && defined(__linux__) && defined(__AMX_TILE__) \
    && defined(__AMX_INT8__)
#define DECODEKIT_TILES

#include <cstdint>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace decodekit {

// Whether the kernel lets this process use tiles; asked once.
inline bool has_tiles() {
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;
  static const bool found = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return found;
}

struct TileSize {
  int rows, bytes;
};

// Configuration of the eight tiles, in the CPU's format. Must be a constant: the intrinsic declares only the
// first bytes as read, so the compiler could drop stores to the others.
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

// Configures tiles of these sizes in the current thread, and releases them on destruction.
struct Tiles {
  explicit Tiles(const TileSizes& sizes) { _tile_loadconfig(&sizes); }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

}  // namespace decodekit

#endif
