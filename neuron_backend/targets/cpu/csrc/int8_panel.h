// Sums of products by int8 weights for many rows. The weights of 16 or 32 outputs are rearranged, once for all
// rows, so that each lane of a vector is an output: no sum has to be added up across lanes.

#pragma once

#include "int8_sums.h"
#include "transpose.h"

#ifdef DECODEKIT_VNNI

#include <algorithm>
#include <cstring>
#include <utility>

namespace decodekit {

// Outputs of a vector of sums, and inputs that one instruction adds to each.
constexpr int LANES = 16;
constexpr int INPUTS_OF_LANE = 4;

// Inputs that are rearranged at a time: those of 32 outputs take half of a first-level cache.
constexpr int64_t PANEL_INPUTS = 512;

// Terms whose sums for 32 outputs are kept in registers: 24 of 32.
constexpr int PANEL_TERMS = 12;

template <int VECTORS>
class Int8Panel {
 public:
  static constexpr int OUTPUTS = VECTORS * LANES;

  // weights is [OUTPUTS][inputs], `apart` from each other; up to PANEL_INPUTS inputs.
  Int8Panel(const int8_t* weights, int64_t apart, int64_t inputs)
      : fours_((inputs + INPUTS_OF_LANE - 1) / INPUTS_OF_LANE) {
    for (int vector = 0; vector < VECTORS; ++vector) {
      const int8_t* from = weights + vector * LANES * apart;
      // Four, since an addition waits for the previous one.
      __m512i total[4] = {};
      for (int64_t k = 0; k < inputs; k += sizeof(__m512i)) {
        const __mmask64 kept = kept_bytes(inputs - k);
        __m512i rows[LANES], columns[LANES];
        for (int n = 0; n < LANES; ++n) {
          rows[n] = _mm512_maskz_loadu_epi8(kept, from + n * apart + k);
          fetch_ahead(from + n * apart + k);
        }
        transpose(rows, columns);
        for (int i = 0; i < LANES; ++i) {
          _mm512_store_si512(of_[k / INPUTS_OF_LANE + i][vector], columns[i]);
          total[i % 4] = _mm512_dpbusd_epi32(total[i % 4], _mm512_set1_epi8(1), columns[i]);
        }
      }
      shares_[vector] = _mm512_slli_epi32(plus(plus(total[0], total[1]), plus(total[2], total[3])), 7);
    }
  }

  // Adds the sums of COUNT terms to [COUNT][OUTPUTS]. INPUT_OFFSET has been added to each input; its share is
  // subtracted.
  template <int COUNT>
  void add(const int8_t* terms, int64_t padded, int32_t (*sums)[OUTPUTS]) const {
    add_each<COUNT>(terms, padded, sums, std::make_index_sequence<COUNT * VECTORS>());
  }

 private:
  // With every index a constant, so that all sums stay in registers.
  template <int COUNT, std::size_t... I>
  void add_each(const int8_t* terms, int64_t padded, int32_t (*sums)[OUTPUTS], std::index_sequence<I...>) const {
    __m512i sum[COUNT * VECTORS];
    const auto place = [=](std::size_t i) { return sums[i / VECTORS] + i % VECTORS * LANES; };
    ((sum[I] = _mm512_sub_epi32(_mm512_loadu_si512(place(I)), shares_[I % VECTORS])), ...);
    for (int64_t four = 0; four < fours_; ++four) {
      const auto inputs = [=](int64_t term) {
        int32_t numbers;
        std::memcpy(&numbers, terms + term * padded + four * INPUTS_OF_LANE, sizeof numbers);
        return _mm512_set1_epi32(numbers);
      };
      const auto weights = [=, this](int vector) { return _mm512_load_si512(of_[four][vector]); };
      ((sum[I] = _mm512_dpbusd_epi32(sum[I], inputs(I / VECTORS), weights(I % VECTORS))), ...);
    }
    (_mm512_storeu_si512(place(I), sum[I]), ...);
  }

  alignas(64) int8_t of_[PANEL_INPUTS / INPUTS_OF_LANE][VECTORS][sizeof(__m512i)];
  __m512i shares_[VECTORS];
  int64_t fours_;
};

}  // namespace decodekit

#endif
