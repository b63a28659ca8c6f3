// Attention of any number of columns over the KV cache.
//
// Slots are split into pieces, each with its own softmax, which are combined by their largest scores
// (Milakov & Gimelshein 2018, arXiv:1805.02867, theorem 1; over threads as in Flash-Decoding, Dao et al.
// 2023). Pieces begin at the same slots whatever the columns and the span, and a piece that is masked for a
// column adds nothing: a column's result is bit-identical alone and among others.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "float_gemm.h"
#include "float_vectors.h"
#include "gemm.h"

namespace decodekit {

constexpr int64_t PIECE = 64;

// Columns that share a reading of keys and values. More of them would not fit into a cache.
constexpr int64_t COLUMNS_TOGETHER = 16;

struct Sizes {
  int64_t batch, width, heads, groups, slots, key_dim, value_dim;

  int64_t sharing() const { return heads / groups; }
};

// The token of each column, [batch][width]; negative for padding. Null: all are tokens.
struct Ids {
  const int64_t* of;
  int64_t width;

  bool is_token(int64_t row, int64_t column) const { return !of || of[row * width + column] >= 0; }
};

// Some columns of some groups of some batch rows.
struct Part {
  int64_t first_row, rows, first_group, groups, first_column, columns;
};

// A tensor [batch, groups or heads, slots or width, ...] with the strides of its first three dimensions.
template <class T>
struct Strided {
  const T* data;
  int64_t strides[3];

  const T* at(int64_t row, int64_t head, int64_t third) const {
    return data + row * strides[0] + head * strides[1] + third * strides[2];
  }
};

// Fewer products than this take less time than moving inputs and results between threads.
constexpr int64_t WORTH_SHARING = 1 << 18;

// Partial result of one row in one piece: its largest score, the sum of weights, and the weighted values.
struct Found {
  float* of;

  float& largest() const { return of[0]; }
  float& sum() const { return of[1]; }
  float* values() const { return of + 2; }
  static int64_t size(int64_t value_dim) { return value_dim + 2; }
};

// Products of COUNT rows by `slots` keys, [COUNT][PIECE].
template <class T, int COUNT>
inline void multiply_keys(
    const typename Lanes<T>::Input* rows, const T* keys, int64_t slots, int64_t dim, float (*scores)[PIECE]) {
  const auto some = [&](int64_t n, auto outputs) {
    float found[COUNT][outputs()];
    sums<T, COUNT, outputs()>(rows, keys + n * dim, dim, found);
    for (int row = 0; row < COUNT; ++row) std::copy_n(found[row], outputs(), scores[row] + n);
  };
  each_run<outputs_at_once(COUNT)>(0, slots, some);
}

// How products of queries and keys become scores.
struct Scoring {
  float scale;
  float cap;           // Scores x become cap * tanh(x / cap) before the mask is added; 0: they do not.
  const void* sinks;   // A score for each head that has no value, in the queries' dtype; null: none.
};

// Scores within the cap, in place.
inline void soft_cap(float* scores, const Scoring& scoring) {
  for (int64_t n = 0; n < PIECE; n += Floats::size()) {
    const Floats score = Floats::loadu(scores + n) * Floats(scoring.scale) / Floats(scoring.cap);
    (score.tanh() * Floats(scoring.cap)).store(scores + n);
  }
}

// Scores to unnormalised softmax weights, in place.
inline void weigh(float* scores, const float* bias, const Scoring& scoring, const Found& found) {
  if (scoring.cap > 0) soft_cap(scores, scoring);
  const float scale = scoring.cap > 0 ? 1 : scoring.scale;
  Floats most(-FLT_MAX), sum(0);
  for (int64_t n = 0; n < PIECE; n += Floats::size()) {
    const Floats score = at::vec::fmadd(Floats::loadu(scores + n), Floats(scale), Floats::loadu(bias + n));
    score.store(scores + n);
    most = at::vec::maximum(most, score);
  }
  // NaN counts as the largest, and makes the whole row NaN.
  const auto larger = [](const Floats& a, const Floats& b) { return at::vec::maximum(a, b); };
  const auto plus = [](const Floats& a, const Floats& b) { return a + b; };
  found.largest() = at::vec::vec_reduce_all<float>(larger, most);
  for (int64_t n = 0; n < PIECE; n += Floats::size()) {
    const Floats score = Floats::loadu(scores + n), weight = (score - Floats(found.largest())).exp_u20();
    weight.store(scores + n);
    sum = sum + weight;
  }
  found.sum() = at::vec::vec_reduce_all<float>(plus, sum);
}

// Sums of `slots` values, weighted for each of COUNT rows.
template <class T, int COUNT>
inline void add_values(
    const float (*weights)[PIECE], const T* values, int64_t slots, int64_t dim, const Found* found) {
  constexpr int64_t LANES = Floats::size();
  const auto some = [&](int64_t first, auto vectors) {
    Floats sum[COUNT][vectors()];
    for (auto& row : sum) std::fill(std::begin(row), std::end(row), Floats(0));
    for (int64_t n = 0; n < slots; ++n) {
      Floats value[vectors()];
      for (int i = 0; i < vectors(); ++i) value[i] = as_floats(values + n * dim + first + i * LANES);
      fetch<2>(values + n * dim + first);
      for (int row = 0; row < COUNT; ++row)
        for (int i = 0; i < vectors(); ++i)
          sum[row][i] = at::vec::fmadd(Floats(weights[row][n]), value[i], sum[row][i]);
    }
    for (int row = 0; row < COUNT; ++row)
      for (int i = 0; i < vectors(); ++i) sum[row][i].store(found[row].values() + first + i * LANES);
  };
  constexpr int VECTORS = outputs_at_once(COUNT);
  int64_t first = 0;
  for (; first + VECTORS * LANES <= dim; first += VECTORS * LANES)
    some(first, std::integral_constant<int, VECTORS>());
  for (; first + LANES <= dim; first += LANES) some(first, std::integral_constant<int, 1>());
  for (; first < dim; ++first) {
    for (int row = 0; row < COUNT; ++row) {
      float sum = 0;
      for (int64_t n = 0; n < slots; ++n) sum += weights[row][n] * static_cast<float>(values[n * dim + first]);
      found[row].values()[first] = sum;
    }
  }
}

// Attention of COUNT rows of one group to one piece.
template <class T, int COUNT>
inline void attend(
    const typename Lanes<T>::Input* rows, const T* keys, const T* values, const float (*bias)[PIECE], int64_t slots,
    const Sizes& sizes, const Scoring& scoring, const Found* found) {
  alignas(64) float weights[COUNT][PIECE] = {};
  multiply_keys<T, COUNT>(rows, keys, slots, sizes.key_dim, weights);
  for (int row = 0; row < COUNT; ++row) weigh(weights[row], bias[row], scoring, found[row]);
  add_values<T, COUNT>(weights, values, slots, sizes.value_dim, found);
}

// Combines the partial results of one row in `count` pieces, `apart` floats apart, to its output. A sink, if not
// null, takes part in the softmax.
template <class T>
inline void combine_pieces(float* pieces, int64_t count, int64_t apart, int64_t dim, const T* sink, T* out) {
  // A row that attends to nothing has no piece: `pieces` would be another row's.
  if (count == 0) return static_cast<void>(std::fill_n(out, dim, static_cast<T>(0.0f)));
  float most = sink ? static_cast<float>(*sink) : -FLT_MAX, sum = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, Found{pieces + i * apart}.largest());
  float* const total = Found{pieces}.values();
  for (int64_t i = 0; i < count; ++i) {
    const Found found{pieces + i * apart};
    const float share = std::exp(found.largest() - most);
    const float* values = found.values();
    sum += share * found.sum();
    if (i == 0) {
#pragma omp simd
      for (int64_t d = 0; d < dim; ++d) total[d] *= share;
    } else {
#pragma omp simd
      for (int64_t d = 0; d < dim; ++d) total[d] += share * values[d];
    }
  }
  if (sink) sum += std::exp(static_cast<float>(*sink) - most);
#pragma omp simd
  for (int64_t d = 0; d < dim; ++d) total[d] /= sum;
  narrow(total, dim, out);
}

// The pieces to read: those that some token of the part attends to in its row, ordered by row, group and slot.
struct Plan {
  struct Piece {
    int64_t row, group, first;
  };
  std::vector<Piece> pieces;
  std::vector<int64_t> begins;  // Index of each row's first piece, and the end of the last row's.

  template <class T>
  void make(const Strided<T>& mask, const Ids& ids, const Sizes& sizes, const Part& part) {
    using Limits = std::numeric_limits<T>;
    T hidden[PIECE];
    // As in kv_cache/masks.py.
    std::fill_n(hidden, PIECE, std::is_same_v<T, at::Half> ? -Limits::infinity() : Limits::lowest());
    const int64_t heads = mask.strides[1] ? sizes.heads : 1;
    const auto is_seen = [&](int64_t row, int64_t first) {
      const int64_t bytes = std::min(PIECE, sizes.slots - first) * sizeof(T);
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t column = part.first_column; column < part.first_column + part.columns; ++column)
          if (ids.is_token(row, column) && std::memcmp(mask.at(row, head, column) + first, hidden, bytes) != 0)
            return true;
      return false;
    };
    pieces.clear();
    begins.clear();
    for (int64_t row = part.first_row; row < part.first_row + part.rows; ++row) {
      const auto begin = begins.emplace_back(pieces.size());
      for (int64_t first = 0; first < sizes.slots; first += PIECE)
        if (is_seen(row, first)) pieces.push_back({row, part.first_group, first});
      const int64_t count = pieces.size() - begin;
      for (int64_t group = 1; group < part.groups; ++group)
        for (int64_t i = 0; i < count; ++i)
          pieces.push_back({row, part.first_group + group, pieces[begin + i].first});
    }
    begins.push_back(pieces.size());
  }
};

// Reorders [batch][width][heads][dim] to [rows][groups][columns][heads of a group][dim] of a part.
template <class T, class Input>
inline void gather(const T* query, const Sizes& sizes, const Part& part, Input* to) {
  const int64_t heads = sizes.sharing();
  for (int64_t row = part.first_row; row < part.first_row + part.rows; ++row)
    for (int64_t group = part.first_group; group < part.first_group + part.groups; ++group)
      for (int64_t column = part.first_column; column < part.first_column + part.columns; ++column) {
        const T* of = query + ((row * sizes.width + column) * sizes.heads + group * heads) * sizes.key_dim;
        if constexpr (std::is_same_v<T, Input>) {
          std::copy_n(of, heads * sizes.key_dim, to);
        } else {
          widen(of, heads * sizes.key_dim, to);
        }
        to += heads * sizes.key_dim;
      }
}

// Attention of all rows of a group to one piece; writes one Found per row.
template <class T>
inline void attend_piece(
    const Plan::Piece& piece, const typename Lanes<T>::Input* rows, const Strided<T>& keys, const Strided<T>& values,
    const Strided<T>& mask, const Sizes& sizes, const Part& part, const Scoring& scoring, float* found) {
  const int64_t slots = std::min(PIECE, sizes.slots - piece.first), sharing = sizes.sharing();
  const T* k = keys.at(piece.row, piece.group, piece.first);
  const T* v = values.at(piece.row, piece.group, piece.first);
  each_part_of_rows<ROWS_AT_ONCE>(part.columns * sharing, [&](int64_t begin, auto count) {
    alignas(64) float bias[count()][PIECE];
    Found of[count()];
    for (int64_t i = 0; i < count(); ++i) {
      const int64_t head = piece.group * sharing + (begin + i) % sharing, column = (begin + i) / sharing;
      const T* added = mask.at(piece.row, head, part.first_column + column) + piece.first;
      widen(added, slots, bias[i]);
      std::fill(bias[i] + slots, bias[i] + PIECE, -FLT_MAX);
      of[i].of = found + (begin + i) * Found::size(sizes.value_dim);
    }
    attend<T, count()>(rows + begin * sizes.key_dim, k, v, bias, slots, sizes, scoring, of);
  });
}

// The columns of a part that are a token in any of its rows, and those between them.
inline Part around_tokens(Part part, const Ids& ids) {
  const auto is_padding = [&](int64_t column) {
    for (int64_t row = part.first_row; row < part.first_row + part.rows; ++row)
      if (ids.is_token(row, column)) return false;
    return true;
  };
  for (; part.columns > 0 && is_padding(part.first_column + part.columns - 1); --part.columns) {}
  for (; part.columns > 0 && is_padding(part.first_column); --part.columns) ++part.first_column;
  return part;
}

// Zeros for the columns of a part that are not among those of `kept`.
template <class T>
inline void clear_others(const Part& part, const Part& kept, const Sizes& sizes, T* out) {
  const int64_t dim = sizes.sharing() * sizes.value_dim;
  for (int64_t row = part.first_row; row < part.first_row + part.rows; ++row)
    for (int64_t column = part.first_column; column < part.first_column + part.columns; ++column)
      if (column < kept.first_column || column >= kept.first_column + kept.columns)
        std::fill_n(
            out + ((row * sizes.width + column) * sizes.groups + part.first_group) * dim, part.groups * dim,
            static_cast<T>(0.0f));
}

// Attention of one part; several threads share its pieces if `in_threads` is set.
template <class T>
void attend_part(
    const T* query, const Strided<T>& keys, const Strided<T>& values, const Strided<T>& mask, const Ids& ids, T* out,
    const Sizes& sizes, const Part& all, const Scoring& scoring, bool in_threads) {
  const Part part = around_tokens(all, ids);
  clear_others(all, part, sizes, out);
  if (part.columns == 0) return;
  using Input = typename Lanes<T>::Input;
  static thread_local Plan kept_plan;
  static thread_local std::vector<Input> kept_queries;
  static thread_local std::vector<float> kept_found;
  const int64_t sharing = sizes.sharing(), rows = part.columns * sharing;
  kept_plan.make(mask, ids, sizes, part);
  grow(kept_queries, part.rows * part.groups * rows * sizes.key_dim);
  gather(query, sizes, part, kept_queries.data());
  const int64_t count = kept_plan.pieces.size(), apart = rows * Found::size(sizes.value_dim);
  grow(kept_found, count * apart);

  // Pointers, since the thread-local vectors of other threads are empty.
  const Plan& plan = kept_plan;
  const Input* const queries = kept_queries.data();
  float* const found = kept_found.data();
  const T* const sinks = static_cast<const T*>(scoring.sinks);
  const int64_t products = count * PIECE * rows * (sizes.key_dim + sizes.value_dim);
#pragma omp parallel if (in_threads && products >= WORTH_SHARING)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; ++i) {
      const Plan::Piece& piece = plan.pieces[i];
      const int64_t block = (piece.row - part.first_row) * part.groups + piece.group - part.first_group;
      attend_piece(
          piece, queries + block * rows * sizes.key_dim, keys, values, mask, sizes, part, scoring,
          found + i * apart);
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < part.rows * part.groups * rows; ++i) {
      const int64_t row = i / (part.groups * rows), group = i / rows % part.groups, own = i % rows;
      const int64_t seen = (plan.begins[row + 1] - plan.begins[row]) / part.groups;
      float* const first = found + (plan.begins[row] + group * seen) * apart;
      const int64_t column = part.first_column + own / sharing;
      const int64_t head = (part.first_group + group) * sharing + own % sharing;
      // Padding has no piece of its own, and becomes zero.
      combine_pieces(
          first + own * Found::size(sizes.value_dim), ids.is_token(part.first_row + row, column) ? seen : 0, apart,
          sizes.value_dim, sinks ? sinks + head : nullptr,
          out + (((part.first_row + row) * sizes.width + column) * sizes.heads + head) * sizes.value_dim);
    }
  }
}

// query and out are [batch][width][heads][dim]; of padding, out is zero. The last dimension of keys, values and mask
// is contiguous, and the last two of keys and values.
//
// Few columns are one part, whose pieces are shared by the threads. Many are divided into parts, so that a
// part's results stay in a cache, and what its columns do not see is not read.
template <class T>
void attention(
    const T* query, const Strided<T>& keys, const Strided<T>& values, const Strided<T>& mask, const Ids& ids, T* out,
    const Sizes& sizes, const Scoring& scoring) {
  if (sizes.width <= COLUMNS_TOGETHER) {
    const Part all{0, sizes.batch, 0, sizes.groups, 0, sizes.width};
    attend_part(query, keys, values, mask, ids, out, sizes, all, scoring, true);
    return;
  }
  const int64_t blocks = (sizes.width + COLUMNS_TOGETHER - 1) / COLUMNS_TOGETHER;
  // In turns, since later columns see more.
#pragma omp parallel for schedule(static, 1)
  for (int64_t i = 0; i < sizes.batch * sizes.groups * blocks; ++i) {
    const int64_t row = i / (sizes.groups * blocks), group = i / blocks % sizes.groups, block = i % blocks;
    const int64_t column = block * COLUMNS_TOGETHER, columns = std::min(COLUMNS_TOGETHER, sizes.width - column);
    attend_part(query, keys, values, mask, ids, out, sizes, {row, 1, group, 1, column, columns}, scoring, false);
  }
}

}  // namespace decodekit
