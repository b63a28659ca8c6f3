// Transposition of 16 x 16 numbers of 32 bits.

#pragma once

#include "gemm.h"

#ifdef DECODEKIT_AVX512

namespace decodekit {

// columns[c] holds number c of each of the rows.
inline void transpose(const __m512i (&rows)[16], __m512i (&columns)[16]) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  // Lane l of fours[i + c] holds rows i to i + 3 of column 4 * l + c.
  for (int i = 0; i < 16; i += 4)
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = _mm512_unpacklo_epi64(pairs[i + half], pairs[i + 2 + half]);
      fours[i + 2 * half + 1] = _mm512_unpackhi_epi64(pairs[i + half], pairs[i + 2 + half]);
    }
  constexpr int EVEN = 0b10001000, ODD = 0b11011101;
  for (int c = 0; c < 4; ++c) {
    const __m512i upper[2] = {
        _mm512_shuffle_i32x4(fours[c], fours[4 + c], EVEN), _mm512_shuffle_i32x4(fours[c], fours[4 + c], ODD)};
    const __m512i lower[2] = {
        _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], EVEN),
        _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], ODD)};
    columns[c] = _mm512_shuffle_i32x4(upper[0], lower[0], EVEN);
    columns[4 + c] = _mm512_shuffle_i32x4(upper[1], lower[1], EVEN);
    columns[8 + c] = _mm512_shuffle_i32x4(upper[0], lower[0], ODD);
    columns[12 + c] = _mm512_shuffle_i32x4(upper[1], lower[1], ODD);
  }
}

}  // namespace decodekit

#endif
