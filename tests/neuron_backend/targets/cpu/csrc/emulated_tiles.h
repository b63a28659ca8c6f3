// AMX tiles over arrays, for processors without them. To be included before the kernels.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace emulated {

struct Sizes {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

inline thread_local Sizes sizes;
inline thread_local uint8_t tiles[8][16][64];

inline void configure(const void* from) { std::memcpy(&sizes, from, sizeof sizes); }

inline void zero(int tile) { std::memset(tiles[tile], 0, sizeof tiles[tile]); }

inline void load(int tile, const void* from, int64_t apart) {
  zero(tile);
  for (int row = 0; row < sizes.rows[tile]; ++row)
    std::memcpy(tiles[tile][row], static_cast<const char*>(from) + row * apart, sizes.bytes[tile]);
}

inline void store(int tile, void* to, int64_t apart) {
  for (int row = 0; row < sizes.rows[tile]; ++row)
    std::memcpy(static_cast<char*>(to) + row * apart, tiles[tile][row], sizes.bytes[tile]);
}

// Calls f(sum, a, b), with pointers to four bytes each, for all that an instruction multiplies.
template <class F>
inline void each(int to, int a, int b, F f) {
  // The processor refuses other sizes.
  if (sizes.rows[a] != sizes.rows[to] || sizes.bytes[b] != sizes.bytes[to] || sizes.bytes[a] != 4 * sizes.rows[b])
    std::abort();
  for (int row = 0; row < sizes.rows[to]; ++row)
    for (int k = 0; k < sizes.rows[b]; ++k)
      for (int n = 0; n < sizes.bytes[to] / 4; ++n) f(&tiles[to][row][4 * n], &tiles[a][row][4 * k], &tiles[b][k][4 * n]);
}

template <class A, class B>
inline void integers(int to, int a, int b) {
  each(to, a, b, [](uint8_t* of, const uint8_t* left, const uint8_t* right) {
    int32_t sum;
    std::memcpy(&sum, of, sizeof sum);
    for (int i = 0; i < 4; ++i) sum += static_cast<A>(left[i]) * static_cast<B>(right[i]);
    std::memcpy(of, &sum, sizeof sum);
  });
}

inline void floats(int to, int a, int b) {
  each(to, a, b, [](uint8_t* of, const uint8_t* left, const uint8_t* right) {
    const auto number = [](const uint8_t* half) {
      uint8_t whole[4] = {0, 0, half[0], half[1]};
      float found;
      std::memcpy(&found, whole, sizeof found);
      return found;
    };
    float sum;
    std::memcpy(&sum, of, sizeof sum);
    for (int i = 0; i < 4; i += 2) sum += number(left + i) * number(right + i);
    std::memcpy(of, &sum, sizeof sum);
  });
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) emulated::configure(from)
#define _tile_release() void()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, apart) emulated::load(tile, from, apart)
#define _tile_stored(tile, to, apart) emulated::store(tile, to, apart)
#define _tile_dpbssd(to, a, b) emulated::integers<int8_t, int8_t>(to, a, b)
#define _tile_dpbsud(to, a, b) emulated::integers<int8_t, uint8_t>(to, a, b)
#define _tile_dpbf16ps(to, a, b) emulated::floats(to, a, b)

// The processor has them, and the system allows them.
#undef __AMX_TILE__
#undef __AMX_INT8__
#undef __AMX_BF16__
#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#define syscall(...) 0
