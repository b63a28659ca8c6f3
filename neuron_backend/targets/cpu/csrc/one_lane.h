// Functions of one number that round as those of vectors do.
//
// Inductor's loops run over vectors or over single numbers, depending on the shape, and so on the width. For
// single numbers they call functions of the C++ library, whose last bits are others.

#include <ATen/cpu/vec/vec.h>

#include <cmath>

namespace one_lane {

using Vector = at::vec::Vectorized<float>;

inline float first(const Vector& vector) {
  float lanes[Vector::size()];
  vector.store(lanes);
  return lanes[0];
}

#define DECODEKIT_ONE_LANE(name)                                        \
  inline float name(float x) { return first(Vector(x).name()); }       \
  inline double name(double x) { return std::name(x); }

DECODEKIT_ONE_LANE(acos)
DECODEKIT_ONE_LANE(asin)
DECODEKIT_ONE_LANE(atan)
DECODEKIT_ONE_LANE(cos)
DECODEKIT_ONE_LANE(cosh)
DECODEKIT_ONE_LANE(erf)
DECODEKIT_ONE_LANE(erfc)
DECODEKIT_ONE_LANE(exp)
DECODEKIT_ONE_LANE(exp2)
DECODEKIT_ONE_LANE(expm1)
DECODEKIT_ONE_LANE(log)
DECODEKIT_ONE_LANE(log10)
DECODEKIT_ONE_LANE(log1p)
DECODEKIT_ONE_LANE(log2)
DECODEKIT_ONE_LANE(sin)
DECODEKIT_ONE_LANE(sinh)
DECODEKIT_ONE_LANE(tan)
DECODEKIT_ONE_LANE(tanh)

#undef DECODEKIT_ONE_LANE

inline float pow(float x, float y) { return first(Vector(x).pow(Vector(y))); }
inline double pow(double x, double y) { return std::pow(x, y); }

}  // namespace one_lane
