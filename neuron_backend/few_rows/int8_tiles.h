// Sums of products of 8-bit integers in tiles of 16 outputs by up to 16 rows, on processors with AMX: rows
// cost little beside reading the weights, which stay as they are, [out][in].
//
// A tile of weights is 16 outputs by 64 inputs; the inputs of all rows are laid out once to go with it.
// (Of bfloat16 the same takes 10.5 ms where float_rows.h takes 8 for one row and 12 for five, and its sums
// have another order, so that one would have to serve both.)

#pragma once

#if !defined(DECODEKIT_PORTABLE) && defined(__linux__) && defined(__AMX_TILE__) && defined(__AMX_INT8__)
#define DECODEKIT_TILES

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace decodekit {

constexpr int TILE = 16;
constexpr int TILE_INPUTS = 64;

// Whether the system lets this process have tiles; asked once.
inline bool has_tiles() {
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;
  static const bool found = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return found;
}

// Whether weights of that size are whole tiles.
inline bool in_tiles(int64_t out, int64_t in) {
  return out >= TILE && in % TILE_INPUTS == 0 && has_tiles();
}

template <int COLUMNS>
void configure_tiles() {
  alignas(64) struct {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = TILE;
    config.bytes[tile] = tile == 4 || tile == 5 ? TILE_INPUTS : COLUMNS * 4;
  }
  _tile_loadconfig(&config);
}

// Calls finish(n, sums), sums being [ROWS][16], for every run of 16 outputs from n on: the last one begins
// where it is whole, and so may find again what the one before it found.
//
// x is [ROWS][in], weights [out][in].
template <int ROWS, class F>
void tile_sums(const int8_t* x, const int8_t* weights, int64_t out, int64_t in, bool threads, F finish) {
  constexpr int COLUMNS = std::min(ROWS, TILE), TURNS = (ROWS + COLUMNS - 1) / COLUMNS;
  constexpr int64_t LAID = TILE * COLUMNS * 4;
  const int64_t blocks = in / TILE_INPUTS, runs = (out + TILE - 1) / TILE;
  // Four bytes of each row side by side, for every four bytes of inputs.
  static thread_local std::vector<int8_t> laid;
  laid.assign(TURNS * blocks * LAID, 0);
  for (int row = 0; row < ROWS; ++row) {
    int8_t* to = laid.data() + row / COLUMNS * blocks * LAID + row % COLUMNS * 4;
    for (int64_t k = 0; k < in; k += 4) std::memcpy(to + k * COLUMNS, x + row * in + k, 4);
  }
  const int8_t* inputs = laid.data();
#pragma omp parallel if (threads)
  {
    configure_tiles<COLUMNS>();
#pragma omp for schedule(static)
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t n = std::min(run * TILE, out - TILE);
      const int8_t* of = weights + n * in;
      int32_t sums[TURNS * COLUMNS][TILE];
      for (int turn = 0; turn < TURNS; ++turn) {
        const int8_t* by = inputs + turn * blocks * LAID;
        const auto fetch = [=](int64_t block) {
          if (turn) return;
          for (int i = 0; i < TILE; ++i) __builtin_prefetch(of + (TILE + i) * in + block * TILE_INPUTS);
        };
        // Four sums at a time, since each addition waits for the one before it.
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t block = 0; block < blocks; block += 4) {
          fetch(block);
          _tile_loadd(4, of + block * TILE_INPUTS, in);
          _tile_loadd(6, by + block * LAID, COLUMNS * 4);
          _tile_dpbssd(0, 4, 6);
          if (block + 1 == blocks) break;
          fetch(block + 1);
          _tile_loadd(5, of + (block + 1) * TILE_INPUTS, in);
          _tile_loadd(7, by + (block + 1) * LAID, COLUMNS * 4);
          _tile_dpbssd(1, 5, 7);
          if (block + 2 == blocks) break;
          fetch(block + 2);
          _tile_loadd(4, of + (block + 2) * TILE_INPUTS, in);
          _tile_loadd(6, by + (block + 2) * LAID, COLUMNS * 4);
          _tile_dpbssd(2, 4, 6);
          if (block + 3 == blocks) break;
          fetch(block + 3);
          _tile_loadd(5, of + (block + 3) * TILE_INPUTS, in);
          _tile_loadd(7, by + (block + 3) * LAID, COLUMNS * 4);
          _tile_dpbssd(3, 5, 7);
        }
        alignas(64) int32_t parts[4][TILE][COLUMNS];
        _tile_stored(0, parts[0], COLUMNS * 4);
        _tile_stored(1, parts[1], COLUMNS * 4);
        _tile_stored(2, parts[2], COLUMNS * 4);
        _tile_stored(3, parts[3], COLUMNS * 4);
        for (int column = 0; column < COLUMNS; ++column)
          for (int i = 0; i < TILE; ++i)
            sums[turn * COLUMNS + column][i] =
                (parts[0][i][column] + parts[1][i][column]) + (parts[2][i][column] + parts[3][i][column]);
      }
      finish(n, sums);
    }
    _tile_release();
  }
}

}  // namespace decodekit

#endif
