// Format of int8 weights.

#pragma once

#include <cstdint>

namespace decodekit {

// As quantization/int8_blocks.py: blocks of LANES outputs; for each QUAD of inputs the weights of every output, which
// so lie in lanes of 32 bits. They are unsigned, OFFSET more than what they stand for.

constexpr int LANES = 16;
constexpr int QUAD = 4;
constexpr int LINE = LANES * QUAD;
constexpr int OFFSET = 128;

// What OFFSET adds to the sum of products of integers whose sum is `sum`, modulo 2^32 as that is.
inline uint32_t share_of(int32_t sum) { return static_cast<uint32_t>(sum) * OFFSET; }

}  // namespace decodekit
