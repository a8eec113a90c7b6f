// The C library's functions of floats and doubles, by one name for both. The same as <cmath>'s, which takes longer to read than
// most programs take to compile.
#pragma once

extern "C" {
double j0(double) noexcept;
double j1(double) noexcept;
double y0(double) noexcept;
double y1(double) noexcept;
}

namespace precast::library {

#define PRECAST_OF_ONE(name)                                        \
    inline float name(float x) { return __builtin_##name##f(x); } \
    inline double name(double x) { return __builtin_##name(x); }
PRECAST_OF_ONE(acos)
PRECAST_OF_ONE(acosh)
PRECAST_OF_ONE(asin)
PRECAST_OF_ONE(asinh)
PRECAST_OF_ONE(atan)
PRECAST_OF_ONE(atanh)
PRECAST_OF_ONE(ceil)
PRECAST_OF_ONE(cos)
PRECAST_OF_ONE(cosh)
PRECAST_OF_ONE(erf)
PRECAST_OF_ONE(erfc)
PRECAST_OF_ONE(exp)
PRECAST_OF_ONE(exp2)
PRECAST_OF_ONE(fabs)
PRECAST_OF_ONE(floor)
PRECAST_OF_ONE(lgamma)
PRECAST_OF_ONE(log)
PRECAST_OF_ONE(log10)
PRECAST_OF_ONE(log2)
PRECAST_OF_ONE(nearbyint)
PRECAST_OF_ONE(sin)
PRECAST_OF_ONE(sinh)
PRECAST_OF_ONE(sqrt)
PRECAST_OF_ONE(tan)
PRECAST_OF_ONE(trunc)
#undef PRECAST_OF_ONE

#define PRECAST_OF_TWO(name)                                                      \
    inline float name(float x, float y) { return __builtin_##name##f(x, y); } \
    inline double name(double x, double y) { return __builtin_##name(x, y); }
PRECAST_OF_TWO(atan2)
PRECAST_OF_TWO(copysign)
PRECAST_OF_TWO(fmod)
PRECAST_OF_TWO(hypot)
PRECAST_OF_TWO(nextafter)
PRECAST_OF_TWO(pow)
#undef PRECAST_OF_TWO

inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline bool isinf(double x) { return __builtin_isinf(x); }

}  // namespace precast::library
