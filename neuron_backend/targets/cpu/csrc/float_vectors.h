// Vectors of float32, as wide as the CPU's, loaded from and stored to any dtype.

#pragma once

#include <cstdint>

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

namespace decodekit {

using Floats = at::vec::Vectorized<float>;

inline Floats as_floats(const float* p) { return Floats::loadu(p); }

// Of Floats::size() integers: integer vectors are wider on some CPUs. A load with a count copies them first.
inline Floats as_floats(const int32_t* p) {
  using Integers = at::vec::Vectorized<int32_t>;
  if constexpr (Integers::size() == Floats::size()) {
    return at::vec::convert<float>(Integers::loadu(p));
  } else {
    return at::vec::convert<float>(Integers::loadu(p, Floats::size()));
  }
}

template <class T>
inline Floats as_floats(const T* p) {
  Floats loaded;
  at::vec::load_to_float<T>(p, loaded);
  return loaded;
}

// Stores two consecutive vectors.

inline void store(float* to, const Floats& a, const Floats& b) {
  a.store(to);
  b.store(to + Floats::size());
}

template <class T>
inline void store(T* to, const Floats& a, const Floats& b) {
  at::vec::convert_from_float<T>(a, b).store(to);
}

// Conversions of `count` numbers to and from float32. GCC does not vectorise those of float16.

template <class T>
inline void widen(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + Floats::size() <= count; i += Floats::size()) as_floats(from + i).store(to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

template <class T>
inline void narrow(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + 2 * Floats::size() <= count; i += 2 * Floats::size())
    store(to + i, as_floats(from + i), as_floats(from + i + Floats::size()));
  for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

}  // namespace decodekit
