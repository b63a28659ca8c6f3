// One column of a step, and the few tokens of it that remain.

#pragma once

#include <cstdint>
#include <vector>

namespace decodekit {

constexpr int64_t NO_TOKEN = -1;

// The tokens before a column.
struct Column {
    const int64_t* tokens;
    int64_t length, prompt, vocab;
    uint64_t random_stream;
};

// A token and its logit.
struct Token {
    float score;
    int64_t id;

    // Ascending scores; the lower of equal ids first, which is the order in which they are dropped.
    bool operator<(const Token& other) const {
        return score < other.score || (score == other.score && id < other.id);
    }
};

using Few = std::vector<Token>;

}  // namespace decodekit
