// Attention of a few columns over the cache: what takes time is reading keys and values, once.
//
// Slots are taken in pieces, each with a softmax of its own, which are joined by their largest scores
// (Milakov & Gimelshein 2018, arXiv:1805.02867, theorem 1; over threads as in Flash-Decoding, Dao et al.
// 2023). Pieces begin at the same slots whatever the columns and the span, and one that a column does not
// see adds nothing: a column's numbers are the same, to the last bit, alone and among others.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include "float_rows.h"
#include "rows.h"

namespace decodekit {

using Floats = at::vec::Vectorized<float>;

constexpr int64_t PIECE = 64;

// Rows that share keys and are multiplied by them at once.
constexpr int TOGETHER = 4;

struct Sizes {
  int64_t batch, width, heads, groups, slots, key_dim, value_dim;

  // Rows of one group: its heads of every column.
  int64_t sharing() const { return heads / groups; }
  int64_t rows() const { return width * sharing(); }
};

// Numbers of [batch, groups or heads, slots or width, ...], and how far apart the first three are.
template <class T>
struct Strided {
  const T* data;
  int64_t strides[3];

  const T* at(int64_t row, int64_t head, int64_t third) const {
    return data + row * strides[0] + head * strides[1] + third * strides[2];
  }
};

// Fewer products than that take less time than handing another thread what it reads, and taking what it found.
constexpr int64_t WORTH_SHARING = 1 << 18;

// What one row finds in one piece: its largest score, the sum of weights, and the weighted values.
struct Found {
  float* of;

  float& largest() const { return of[0]; }
  float& sum() const { return of[1]; }
  float* values() const { return of + 2; }
  static int64_t size(int64_t value_dim) { return value_dim + 2; }
};

inline Floats as_floats(const float* p) { return Floats::loadu(p); }

template <class T>
inline Floats as_floats(const T* p) {
  Floats loaded;
  at::vec::load_to_float<T>(p, loaded);
  return loaded;
}

// Products of COUNT rows by `slots` keys, [COUNT][PIECE].
template <class T, int COUNT>
inline void multiply_keys(
    const typename Lanes<T>::Input* rows, const T* keys, int64_t slots, int64_t dim, float (*scores)[PIECE]) {
  const auto some = [&](int64_t n, auto outputs) {
    float found[COUNT][outputs()];
    sums<T, COUNT, outputs()>(rows, keys + n * dim, dim, found);
    for (int row = 0; row < COUNT; ++row) std::copy_n(found[row], outputs(), scores[row] + n);
  };
  int64_t n = 0;
  for (; n + 4 <= slots; n += 4) some(n, std::integral_constant<int, 4>());
  for (; n < slots; ++n) some(n, std::integral_constant<int, 1>());
}

// Scores to weights, in place: exponentials of what they lack of the largest.
inline void weigh(float* scores, const float* bias, float scale, const Found& found) {
  Floats most(-FLT_MAX), sum(0);
  for (int64_t n = 0; n < PIECE; n += Floats::size()) {
    const Floats score = at::vec::fmadd(Floats::loadu(scores + n), Floats(scale), Floats::loadu(bias + n));
    score.store(scores + n);
    most = at::vec::maximum(most, score);
  }
  // What is no number is the largest, and makes everything of the row none.
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

// Sums of `slots` values by the weights of COUNT rows.
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
      fetch_ahead(values + n * dim + first);
      for (int row = 0; row < COUNT; ++row)
        for (int i = 0; i < vectors(); ++i)
          sum[row][i] = at::vec::fmadd(Floats(weights[row][n]), value[i], sum[row][i]);
    }
    for (int row = 0; row < COUNT; ++row)
      for (int i = 0; i < vectors(); ++i) sum[row][i].store(found[row].values() + first + i * LANES);
  };
  int64_t first = 0;
  for (; first + 4 * LANES <= dim; first += 4 * LANES) some(first, std::integral_constant<int, 4>());
  for (; first + LANES <= dim; first += LANES) some(first, std::integral_constant<int, 1>());
  for (; first < dim; ++first) {
    for (int row = 0; row < COUNT; ++row) {
      float sum = 0;
      for (int64_t n = 0; n < slots; ++n) sum += weights[row][n] * static_cast<float>(values[n * dim + first]);
      found[row].values()[first] = sum;
    }
  }
}

// Up to TOGETHER rows of one group in one piece.
template <class T, int COUNT>
inline void attend(
    const typename Lanes<T>::Input* rows, const T* keys, const T* values, const float (*bias)[PIECE], int64_t slots,
    const Sizes& sizes, float scale, const Found* found) {
  alignas(64) float weights[COUNT][PIECE] = {};
  multiply_keys<T, COUNT>(rows, keys, slots, sizes.key_dim, weights);
  for (int row = 0; row < COUNT; ++row) weigh(weights[row], bias[row], scale, found[row]);
  add_values<T, COUNT>(weights, values, slots, sizes.value_dim, found);
}

// Of one row, what `count` pieces found, `apart` floats from one to the next, to the mean of its values.
template <class T>
inline void join(float* pieces, int64_t count, int64_t apart, int64_t dim, T* out) {
  float most = -FLT_MAX, sum = 0;
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
#pragma omp simd
  for (int64_t d = 0; d < dim; ++d) out[d] = static_cast<T>(total[d] / sum);
}

// Which pieces any column of a row sees.
template <class T>
inline void seen_pieces(const Strided<T>& mask, int64_t row, const Sizes& sizes, std::vector<int64_t>& pieces) {
  T hidden[PIECE];
  std::fill_n(hidden, PIECE, std::numeric_limits<T>::lowest());
  const int64_t heads = mask.strides[1] ? sizes.heads : 1;
  pieces.clear();
  for (int64_t first = 0; first < sizes.slots; first += PIECE) {
    const int64_t bytes = std::min(PIECE, sizes.slots - first) * sizeof(T);
    bool seen = false;
    for (int64_t head = 0; head < heads && !seen; ++head)
      for (int64_t column = 0; column < sizes.width && !seen; ++column)
        seen = std::memcmp(mask.at(row, head, column) + first, hidden, bytes) != 0;
    if (seen) pieces.push_back(first);
  }
}

// query and out are [batch][width][heads][dim]; of keys, values and mask the last dimension is contiguous,
// and of keys and values the last but one.
template <class T>
void attention(
    const T* query, const Strided<T>& keys, const Strided<T>& values, const Strided<T>& mask, T* out,
    const Sizes& sizes, float scale) {
  using Input = typename Lanes<T>::Input;
  struct Task {
    int64_t row, group, first;
  };
  static thread_local std::vector<Input> kept_queries;
  static thread_local std::vector<Task> kept_tasks;
  static thread_local std::vector<int64_t> kept_pieces, kept_begins;
  static thread_local std::vector<float> kept_found;
  auto& queries = kept_queries;
  auto& tasks = kept_tasks;
  auto& pieces = kept_pieces;
  auto& begins = kept_begins;
  const int64_t rows = sizes.rows(), sharing = sizes.sharing(), dim = sizes.key_dim;

  // Rows of a group one after the other: column by column, its heads of each.
  queries.resize(sizes.batch * sizes.groups * rows * dim);
  tasks.clear();
  begins.assign(1, 0);
  Input* to = queries.data();
  for (int64_t row = 0; row < sizes.batch; ++row) {
    seen_pieces(mask, row, sizes, pieces);
    begins.push_back(begins.back() + sizes.groups * pieces.size());
    for (int64_t group = 0; group < sizes.groups; ++group) {
      for (const int64_t first : pieces) tasks.push_back({row, group, first});
      for (int64_t column = 0; column < sizes.width; ++column) {
        const T* of = query + ((row * sizes.width + column) * sizes.heads + group * sharing) * dim;
        to = std::copy(of, of + sharing * dim, to);
      }
    }
  }
  const int64_t apart = rows * Found::size(sizes.value_dim);
  kept_found.resize(tasks.size() * apart);
  float* const found = kept_found.data();
  const int64_t count = tasks.size(), products = count * PIECE * rows * (dim + sizes.value_dim);
#pragma omp parallel if (products >= WORTH_SHARING)
  {
#pragma omp for schedule(static)
    for (int64_t task = 0; task < count; ++task) {
      const auto [row, group, first] = tasks[task];
      const int64_t slots = std::min(PIECE, sizes.slots - first);
      for (int64_t begin = 0; begin < rows; begin += TOGETHER) {
        const int64_t some = std::min<int64_t>(TOGETHER, rows - begin);
        alignas(64) float bias[TOGETHER][PIECE];
        Found of[TOGETHER];
        for (int64_t i = 0; i < some; ++i) {
          const int64_t head = group * sharing + (begin + i) % sharing, column = (begin + i) / sharing;
          const T* hides = mask.at(row, head, column) + first;
          std::copy(hides, hides + slots, bias[i]);
          std::fill(bias[i] + slots, bias[i] + PIECE, -FLT_MAX);
          of[i].of = found + task * apart + (begin + i) * Found::size(sizes.value_dim);
        }
        const Input* x = queries.data() + ((row * sizes.groups + group) * rows + begin) * dim;
        const T* k = keys.at(row, group, first);
        const T* v = values.at(row, group, first);
        const auto call = [&](auto known) { attend<T, known()>(x, k, v, bias, slots, sizes, scale, of); };
        if (some == 4) call(std::integral_constant<int, 4>());
        else if (some == 3) call(std::integral_constant<int, 3>());
        else if (some == 2) call(std::integral_constant<int, 2>());
        else call(std::integral_constant<int, 1>());
      }
    }
#pragma omp for schedule(static)
    for (int64_t each = 0; each < sizes.batch * sizes.width * sizes.heads; ++each) {
      const int64_t head = each % sizes.heads, column = each / sizes.heads % sizes.width;
      const int64_t row = each / sizes.heads / sizes.width, group = head / sharing;
      const int64_t seen = (begins[row + 1] - begins[row]) / sizes.groups;
      float* const of = found + (begins[row] + group * seen) * apart;
      const int64_t own = (column * sharing + head % sharing) * Found::size(sizes.value_dim);
      join(of + own, seen, apart, sizes.value_dim, out + each * sizes.value_dim);
    }
  }
}

}  // namespace decodekit
