// Vectors of float32, as wide as the CPU's, loaded from and stored to any dtype.

#pragma once

#include <cstdint>

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

namespace decodekit {

using Floats = at::vec::Vectorized<float>;

inline Floats as_floats(const float* p) { return Floats::loadu(p); }

// Of Floats::size() integers: integer vectors are wider on some CPUs.
inline Floats as_floats(const int32_t* p) {
  return at::vec::convert<float>(at::vec::Vectorized<int32_t>::loadu(p, Floats::size()));
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

}  // namespace decodekit
