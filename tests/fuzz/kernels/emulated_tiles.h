// AMX tiles in plain C++, in place of the compiler's intrinsics: for a CPU without them, and so that
// sanitizers see what is loaded and stored. What the CPU faults on ends the program.

#pragma once

#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
// The intrinsics' own headers are left out.
#define _AMXTILEINTRIN_H_INCLUDED
#define _AMXINT8INTRIN_H_INCLUDED
#define _AMXBF16INTRIN_H_INCLUDED

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

// The one call in amx.h: may this process use tiles?
#define syscall(...) 0L

namespace emulated {

constexpr int ROWS = 16, BYTES = 64;

struct Tile {
  int rows, bytes;
  char of[ROWS][BYTES];

  template <class T>
  T at(int row, int column) const {
    T found;
    std::memcpy(&found, of[row] + column * sizeof(T), sizeof(T));
    return found;
  }
};

inline thread_local Tile tiles[8];
inline thread_local bool configured = false;

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline Tile& tile(int index) {
  require(configured && index < 8 && tiles[index].rows > 0);
  return tiles[index];
}

inline float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float found;
  std::memcpy(&found, &wide, sizeof found);
  return found;
}

// Adds product(row of a, column of b, index of four bytes) for all of them to each number of `to`.
template <class Sum, class F>
inline void multiply(int to, int a, int b, F product) {
  Tile& sums = tile(to);
  const Tile &left = tile(a), &right = tile(b);
  require(sums.rows == left.rows && sums.bytes == right.bytes && left.bytes == 4 * right.rows);
  for (int row = 0; row < sums.rows; ++row)
    for (int column = 0; column < sums.bytes / 4; ++column) {
      Sum sum = sums.at<Sum>(row, column);
      for (int k = 0; k < right.rows; ++k) sum += product(left, right, row, column, k);
      std::memcpy(sums.of[row] + column * 4, &sum, sizeof sum);
    }
}

// Of A in rows by B in columns; sums wrap around.
template <class A, class B>
inline void multiply_integers(int to, int a, int b) {
  multiply<uint32_t>(to, a, b, [](const auto& left, const auto& right, int row, int column, int k) {
    int32_t sum = 0;
    for (int i = 0; i < 4; ++i)
      sum += left.template at<A>(row, 4 * k + i) * right.template at<B>(k, 4 * column + i);
    return static_cast<uint32_t>(sum);
  });
}

}  // namespace emulated

inline void _tile_loadconfig(const void* from) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  emulated::require(bytes[0] == 1 && bytes[1] == 0);
  for (int i = 0; i < 8; ++i) {
    uint16_t width;
    std::memcpy(&width, bytes + 16 + 2 * i, sizeof width);
    emulated::tiles[i] = {bytes[48 + i], width, {}};
    emulated::require(bytes[48 + i] <= emulated::ROWS && width <= emulated::BYTES && width % 4 == 0);
  }
  emulated::configured = true;
}

inline void _tile_release() { emulated::configured = false; }

inline void _tile_zero(int index) { std::memset(emulated::tile(index).of, 0, sizeof emulated::tiles[0].of); }

inline void _tile_loadd(int index, const void* from, int64_t stride) {
  auto& to = emulated::tile(index);
  for (int row = 0; row < to.rows; ++row)
    std::memcpy(to.of[row], static_cast<const char*>(from) + row * stride, to.bytes);
}

inline void _tile_stored(int index, void* to, int64_t stride) {
  const auto& from = emulated::tile(index);
  for (int row = 0; row < from.rows; ++row)
    std::memcpy(static_cast<char*>(to) + row * stride, from.of[row], from.bytes);
}

inline void _tile_dpbssd(int to, int a, int b) { emulated::multiply_integers<int8_t, int8_t>(to, a, b); }

inline void _tile_dpbsud(int to, int a, int b) { emulated::multiply_integers<int8_t, uint8_t>(to, a, b); }

inline void _tile_dpbf16ps(int to, int a, int b) {
  emulated::multiply<float>(to, a, b, [](const auto& left, const auto& right, int row, int column, int k) {
    float sum = 0;
    for (int i = 0; i < 2; ++i)
      sum += emulated::widened(left.template at<uint16_t>(row, 2 * k + i))
          * emulated::widened(right.template at<uint16_t>(k, 2 * column + i));
    return sum;
  });
}
