// The exponential race: sampling one of a few tokens as from the whole vocabulary.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "column.h"

namespace decodekit {

// A ratio below this share of the largest is clearly smaller: exp(-1e-4).
constexpr double CLEAR = 0.9999;

// The purposes of noise.py.
constexpr uint64_t BLOCK = 1, TOKEN = 2;

// SplitMix64's finaliser, as in noise.py.
inline uint64_t mix(uint64_t key, uint64_t value) {
    uint64_t x = key + 0x9E3779B97F4A7C15u + value;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

inline double exponential(uint64_t key, uint64_t index) {
    return -std::log((static_cast<double>(mix(key, index) >> 12) + 0.5) * 0x1p-52);
}

// The largest of several ratios, if no other comes close.
struct Race {
    double best = -1, second = -1;
    int64_t winner = NO_TOKEN;

    void enter(int64_t runner, double ratio) {
        if (ratio > best) {
            second = best, best = ratio, winner = runner;
        } else if (ratio > second) {
            second = ratio;
        }
    }

    bool is_clear() const { return winner != NO_TOKEN && second < best * CLEAR; }
};

// A block by its mass, and a token in it; NO_TOKEN if one is not clear.
inline int64_t draw(const Column& column, Few& few) {
    const int64_t size = static_cast<int64_t>(std::sqrt(static_cast<double>(column.vocab - 1))) + 1;
    std::sort(few.begin(), few.end(), [](const Token& a, const Token& b) { return a.id < b.id; });
    float best = few[0].score;
    for (const Token& token : few) best = token.score > best ? token.score : best;
    if (!std::isfinite(best)) return NO_TOKEN;
    const uint64_t key = mix(mix(0, column.random_stream), column.length);
    const uint64_t for_blocks = mix(key, BLOCK), for_tokens = mix(key, TOKEN);
    thread_local std::vector<double> weights;
    weights.clear();
    for (const Token& token : few) weights.push_back(std::exp(static_cast<double>(token.score - best)));
    Race blocks, tokens;
    for (size_t i = 0; i < few.size();) {
        const int64_t block = few[i].id / size;
        double mass = 0;
        for (; i < few.size() && few[i].id / size == block; ++i) mass += weights[i];
        blocks.enter(block, mass / exponential(for_blocks, block));
    }
    if (!blocks.is_clear()) return NO_TOKEN;
    for (size_t i = 0; i < few.size(); ++i)
        if (few[i].id / size == blocks.winner)
            tokens.enter(few[i].id, weights[i] / exponential(for_tokens, few[i].id - blocks.winner * size));
    return tokens.is_clear() ? tokens.winner : NO_TOKEN;
}

}  // namespace decodekit
