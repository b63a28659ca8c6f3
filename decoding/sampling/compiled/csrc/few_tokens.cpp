// Sampling from the few tokens that a top-k leaves, for all columns of a step in one call.
//
// The same steps as those of fast_sampling.py: a superset of the largest logits, the stages on these
// tokens, and an exponential race. Where the result may depend on rounding, a column is not clear, and
// the caller takes another path.

#include "column.h"
#include "exponential_race.h"
#include "shortlist.h"
#include "stages.h"

namespace decodekit {

// The token of one column, and in `few` the remaining ones; NO_TOKEN if it is not clear.
static int64_t sample(const float* logits, const Column& column, const Stage* stages, int64_t count,
                      int64_t most, Few& few) {
    const Stage* const end = stages + count;
    const Stage* narrowing = stages;
    while (narrowing->kind != KEEP_LARGEST) ++narrowing;
    const int64_t k = narrowing->count;
    float bound;
    // More than k: the stages before may lower some of the largest.
    if (!shortlist(logits, column.vocab, k + k / 2 + 2, most, few, bound)) return NO_TOKEN;
    bool sorted = false;
    for (const Stage* stage = stages; stage != end; ++stage) {
        if (stage->kind == PENALISE_OCCURRING || stage->kind == DIVIDE) {
            const float divisor = static_cast<float>(stage->number);
            if (stage->kind == PENALISE_OCCURRING) {
                penalise_occurring(*stage, column, few);
            } else {
                for (Token& token : few) token.score /= divisor;
                bound /= divisor;
            }
            sorted = false;
            continue;
        }
        if (!sorted) std::sort(few.begin(), few.end());
        sorted = true;
        if (stage == narrowing) {
            // No token outside the list may reach the k-th.
            const int64_t beyond = static_cast<int64_t>(few.size()) - k;
            if (beyond < 0 || !(few[beyond].score > bound)) return NO_TOKEN;
        }
        if (stage->kind == KEEP_LARGEST) {
            keep_largest(stage->count, few);
        } else if (!keep_mass(stage->number, stage->count, few)) {
            return NO_TOKEN;
        }
    }
    return draw(column, few);
}

}  // namespace decodekit

using namespace decodekit;

extern "C" {

// The arguments of a call. Arrays are contiguous unless strides are given.
struct Batch {
    const float* logits;  // [rows, width, vocab], strided
    int64_t logits_row, logits_column;
    const int64_t* ids;  // [rows, width or 1, capacity], strided
    int64_t ids_row, ids_column;
    const int64_t* lengths;  // [rows, width]
    const int64_t* prompts;  // [rows]
    const int64_t* random_streams;  // [rows]
    const int64_t* columns;  // [rows], how many are sampled; or none: all
    int64_t rows, width, vocab;
};

// Samples each column of some rows, and stops at the first one that is not clear. Columns that are not sampled have
// the result of the last one that is.
//
// Writes the tokens to `sampled` [rows, width], -1 in other rows, and the remaining tokens of each column
// to `left_ids` and `left_scores` [rows, width, capacity], their number to `left` [rows, width].
// Returns whether all columns were clear.
bool decodekit_sample_few(const Batch* batch, const Stage* stages, int64_t count, const int64_t* chosen_rows,
                          int64_t chosen, int64_t capacity, int64_t* sampled, int64_t* left,
                          int64_t* left_ids, float* left_scores) {
    thread_local Few few;
    std::fill(sampled, sampled + batch->rows * batch->width, -1);
    std::fill(left, left + batch->rows * batch->width, 0);
    for (int64_t n = 0; n < chosen; ++n) {
        const int64_t row = chosen_rows[n];
        for (int64_t at = 0; at < batch->width; ++at) {
            const int64_t cell = row * batch->width + at;
            if (batch->columns && at >= batch->columns[row]) {
                sampled[cell] = sampled[cell - 1];
                left[cell] = left[cell - 1];
                std::copy_n(left_ids + (cell - 1) * capacity, left[cell], left_ids + cell * capacity);
                std::copy_n(left_scores + (cell - 1) * capacity, left[cell], left_scores + cell * capacity);
                continue;
            }
            const Column column{batch->ids + row * batch->ids_row + at * batch->ids_column, batch->lengths[cell],
                                batch->prompts[row], batch->vocab,
                                static_cast<uint64_t>(batch->random_streams[row])};
            const float* logits = batch->logits + row * batch->logits_row + at * batch->logits_column;
            const int64_t token = sample(logits, column, stages, count, capacity, few);
            if (token == NO_TOKEN) return false;
            sampled[cell] = token;
            left[cell] = few.size();
            for (size_t i = 0; i < few.size(); ++i) {
                left_ids[cell * capacity + i] = few[i].id;
                left_scores[cell * capacity + i] = few[i].score;
            }
        }
    }
    return true;
}
}
