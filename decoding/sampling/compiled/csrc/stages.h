// The stages of a chain, on the few tokens of one column.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "column.h"

namespace decodekit {

// A stage. The order is that of Kind in operation.py.
enum Kind : int64_t { PENALISE_OCCURRING, DIVIDE, KEEP_LARGEST, KEEP_MASS };

struct Stage {
    int64_t kind;
    double number;      // the penalty, the divisor, or p
    int64_t count;      // the window (-1 for all), k, or the fewest tokens kept
    int64_t from_prompt;  // whether the prompt's tokens count
};

// A share of the total mass that is closer than this to an edge may be rounded across it.
constexpr double NEAR_EDGE = 1e-5;

// Penalises the tokens that occurred, each once.
inline void penalise_occurring(const Stage& stage, const Column& column, Few& few) {
    int64_t start = stage.from_prompt ? 0 : column.prompt;
    if (stage.count >= 0) start = std::max(start, column.length - stage.count);
    // A sparse set, which needs no clearing (Briggs and Torczon, 1993).
    thread_local std::vector<int64_t> index_of;
    thread_local std::vector<char> occurs;
    if (static_cast<int64_t>(index_of.size()) < column.vocab) index_of.resize(column.vocab);
    occurs.assign(few.size(), 0);
    for (size_t i = 0; i < few.size(); ++i) index_of[few[i].id] = i;
    for (int64_t place = start; place < column.length; ++place) {
        const int64_t id = column.tokens[place];
        if (id < 0 || id >= column.vocab) continue;
        const uint64_t i = index_of[id];
        if (i < few.size() && few[i].id == id) occurs[i] = 1;
    }
    const float penalty = static_cast<float>(stage.number);
    for (size_t i = 0; i < few.size(); ++i)
        // With a penalty >= 1 the smaller of the two is right for either sign.
        if (occurs[i]) few[i].score = std::min(few[i].score * penalty, few[i].score / penalty);
}

// Drops all but the `k` largest of the sorted tokens; those that tie with a remaining one remain.
inline void keep_largest(int64_t k, Few& few) {
    const int64_t size = few.size();
    int64_t dropped = std::max<int64_t>(0, size - k);
    const float floor = few[std::min(dropped, size - 1)].score;
    while (dropped && few[dropped - 1].score == floor) --dropped;
    few.erase(few.begin(), few.begin() + dropped);
}

// False where the edge of the nucleus is within rounding distance of a token.
inline bool keep_mass(double p, int64_t fewest, Few& few) {
    if (p == 1.0) return true;
    const float best = few.back().score;
    if (!std::isfinite(best)) return false;
    thread_local std::vector<double> reached;
    reached.clear();
    double total = 0;
    for (const Token& token : few) reached.push_back(total += std::exp(static_cast<double>(token.score - best)));
    const double spared = (1 - p) * total, margin = NEAR_EDGE * total;
    const int64_t most = std::max<int64_t>(0, static_cast<int64_t>(few.size()) - fewest);
    const int64_t fallen = std::upper_bound(reached.begin(), reached.end(), spared) - reached.begin();
    const int64_t dropped = std::min(fallen, most);
    if (dropped && spared - reached[dropped - 1] < margin) return false;
    if (dropped < most && reached[dropped] - spared < margin) return false;
    few.erase(few.begin(), few.begin() + dropped);
    return true;
}

}  // namespace decodekit
