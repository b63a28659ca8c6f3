// A superset of the largest logits, without a sort.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "column.h"

// One library serves all processors of an architecture: a cache folder may be shared between machines. The
// choice between the clones is made by glibc's loader.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__)
#define DECODEKIT_FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DECODEKIT_FOR_EACH_PROCESSOR
#endif

namespace decodekit {

// Blocks for each token wanted: so many that few of the largest logits share one.
constexpr int64_t BLOCKS = 8;

// Several stages, each scaling by at most 1000, do not overflow below this.
constexpr float LARGEST = 1e15f;

// As many numbers as the widest registers hold; compilers split them where registers are narrower.
constexpr int64_t LANES = 16;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Flags __attribute__((vector_size(4 * LANES)));

// The largest logit of each block of `size`. False for NaN, or LARGEST and more.
DECODEKIT_FOR_EACH_PROCESSOR static bool block_maxima(const float* logits, int64_t vocab, int64_t size,
                                                      float* maxima) {
    const Floats lowest = Floats{} - std::numeric_limits<float>::infinity();
    Flags good = Flags{} - 1;
    for (int64_t start = 0; start < vocab; start += size) {
        const int64_t end = std::min(vocab, start + size);
        Floats best = lowest;
        int64_t i = start;
        for (; i + LANES <= end; i += LANES) {
            Floats x;
            std::memcpy(&x, logits + i, sizeof x);
            best = x > best ? x : best;
            good &= x < LARGEST;
        }
        for (int64_t lane = 0; i < end; ++i, ++lane) {
            best[lane] = logits[i] > best[lane] ? logits[i] : best[lane];
            good[lane] &= -(logits[i] < LARGEST);
        }
        float lanes[LANES];
        std::memcpy(lanes, &best, sizeof lanes);
        for (int64_t half = LANES / 2; half; half /= 2)
            for (int64_t lane = 0; lane < half; ++lane)
                lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
        *maxima++ = lanes[0];
    }
    for (int64_t lane = 0; lane < LANES; ++lane)
        if (!good[lane]) return false;
    return true;
}

// `reach` to `most` tokens with larger logits than all others, which are at most `bound`.
//
// False if there are more, or too few blocks, or a logit is NaN or too large.
inline bool shortlist(const float* logits, int64_t vocab, int64_t reach, int64_t most, Few& few,
                      float& bound) {
    const int64_t fitting = vocab / (BLOCKS * reach) / LANES * LANES;
    const int64_t size = std::max(fitting, 2 * LANES), count = (vocab + size - 1) / size;
    if (reach * 2 > count) return false;
    // Memory that stays from call to call.
    thread_local std::vector<float> maxima, largest;
    maxima.resize(count);
    if (!block_maxima(logits, vocab, size, maxima.data())) return false;
    largest = maxima;
    // That many disjoint blocks have a logit of at least this.
    std::nth_element(largest.begin(), largest.begin() + (reach - 1), largest.end(), std::greater<float>());
    bound = largest[reach - 1];
    if (!(bound > -LARGEST)) return false;
    few.clear();
    for (int64_t block = 0; block < count; ++block) {
        if (!(maxima[block] >= bound)) continue;
        const int64_t end = std::min(vocab, (block + 1) * size);
        for (int64_t id = block * size; id < end; ++id)
            if (logits[id] >= bound) few.push_back({logits[id], id});
        if (static_cast<int64_t>(few.size()) > most) return false;
    }
    return true;
}

}  // namespace decodekit
