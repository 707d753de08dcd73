// CUDA's scalar and vector types on a CPU, with the hardware's rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace tcgemm::simulator {

template <typename To, typename From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

inline float float_of_half(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    float value = float(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  return bits_as<float>(sign | (exponent + 112) << 23 | mantissa << 13);
#endif
}

// Round to nearest even; overflow gives infinity, as cvt.rn.f16.f32.
inline uint16_t half_of_float(float f) {
#if defined(__F16C__)
  return f != f ? 0x7fff : static_cast<uint16_t>(_cvtss_sh(f, 0));
#else
  uint32_t x = bits_as<uint32_t>(f), sign = (x >> 16) & 0x8000;
  x &= 0x7fffffff;
  if (x > 0x7f800000) return 0x7fff;
  if (x >= 0x47800000) return uint16_t(sign | 0x7c00);
  if (x < 0x38800000) {  // subnormal: the FPU rounds at the bit worth 2^-24
    float shifted = bits_as<float>(x) + 0.5f;
    return uint16_t(sign | (bits_as<uint32_t>(shifted) - 0x3f000000));
  }
  x += 0xfff + ((x >> 13) & 1);
  return uint16_t(sign | ((x - 0x38000000) >> 13));
#endif
}

// Float that rounds on to any narrower type as the double itself would (round to odd).
inline float float_to_odd(double d) {
  float f = static_cast<float>(d);
  if (double(f) == d || f != f) return f;
  uint32_t x = bits_as<uint32_t>(f);
  if (x & 1) return f;
  bool away = std::fabs(double(f)) > std::fabs(d);
  return bits_as<float>(away ? x - 1 : x + 1);
}

inline float float_of_bfloat16(uint16_t b) { return bits_as<float>(uint32_t(b) << 16); }

inline uint16_t bfloat16_of_float(float f) {
  uint32_t x = bits_as<uint32_t>(f);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<uint16_t>((x + 0x7fff + ((x >> 16) & 1)) >> 16);
}

// cvt.rna.tf32.f32: nearest, ties away from zero, 10 mantissa bits kept.
inline float tf32_of_float(float f) {
  uint32_t x = bits_as<uint32_t>(f);
  if ((x & 0x7f800000) == 0x7f800000) return f;
  return bits_as<float>((x + 0x1000) & 0xffffe000);
}

// 8-bit floats with `mantissa` mantissa bits: e4m3 (3, no infinity, NaN 0x7f) and e5m2 (2).
template <int mantissa>
inline float float_of_fp8(uint8_t v) {
  constexpr int bias = mantissa == 3 ? 7 : 15;
  int exponent = (v & 0x7f) >> mantissa, fraction = v & ((1 << mantissa) - 1);
  float value;
  if (mantissa == 3 && (v & 0x7f) == 0x7f) value = NAN;
  else if (mantissa == 2 && exponent == 31) value = fraction ? NAN : INFINITY;
  else if (exponent == 0) value = std::ldexp(float(fraction), 1 - bias - mantissa);
  else value = std::ldexp(float(fraction + (1 << mantissa)), exponent - bias - mantissa);
  return v & 0x80 ? -value : value;
}

// cvt.rn.satfinite: out of range becomes the largest finite number.
template <int mantissa>
inline uint8_t fp8_of_float(float f) {
  constexpr int bias = mantissa == 3 ? 7 : 15;
  constexpr float largest = mantissa == 3 ? 448.0f : 57344.0f;
  if (f != f) return 0x7f;
  uint8_t sign = std::signbit(f) ? 0x80 : 0;
  float a = std::fabs(f);
  if (a >= largest) return sign | (mantissa == 3 ? 0x7e : 0x7b);
  int exponent;
  std::frexp(a, &exponent);
  exponent = a == 0 ? 1 - bias : std::max(exponent - 1, 1 - bias);
  int units = static_cast<int>(std::nearbyint(std::ldexp(a, mantissa - exponent)));
  // `units` carries the hidden bit of a normal number; adding it moves the exponent on by one.
  return sign | static_cast<uint8_t>(((exponent + bias - 1) << mantissa) + units);
}

// A 16-bit float in memory; arithmetic happens in float32 and is rounded once.
template <typename T>
using if_arithmetic = std::enable_if_t<std::is_arithmetic_v<T>, int>;

}  // namespace tcgemm::simulator

#define TCGEMM_SIXTEEN_BIT(NAME, TO_FLOAT, OF_FLOAT)                                          \
  struct __attribute__((aligned(2))) NAME {                                                   \
    uint16_t bits;                                                                            \
    NAME() = default;                                                                         \
    template <typename T, tcgemm::simulator::if_arithmetic<T> = 0>                            \
    NAME(T value) {                                                                           \
      if constexpr (std::is_same_v<T, float>)                                                 \
        bits = tcgemm::simulator::OF_FLOAT(value);                                            \
      else                                                                                    \
        bits = tcgemm::simulator::OF_FLOAT(                                                   \
            tcgemm::simulator::float_to_odd(static_cast<double>(value)));                     \
    }                                                                                         \
    operator float() const { return tcgemm::simulator::TO_FLOAT(bits); }                      \
    explicit operator double() const { return float(*this); }                                 \
    explicit operator int() const { return static_cast<int>(float(*this)); }                  \
    explicit operator bool() const { return float(*this) != 0.0f; }                           \
    NAME& operator+=(NAME o) { return *this = NAME(float(*this) + float(o)); }                \
    NAME& operator-=(NAME o) { return *this = NAME(float(*this) - float(o)); }                \
    NAME& operator*=(NAME o) { return *this = NAME(float(*this) * float(o)); }                \
    NAME& operator/=(NAME o) { return *this = NAME(float(*this) / float(o)); }                \
  };                                                                                          \
  inline NAME operator+(NAME a, NAME b) { return NAME(float(a) + float(b)); }                 \
  inline NAME operator-(NAME a, NAME b) { return NAME(float(a) - float(b)); }                 \
  inline NAME operator*(NAME a, NAME b) { return NAME(float(a) * float(b)); }                 \
  inline NAME operator/(NAME a, NAME b) { return NAME(float(a) / float(b)); }                 \
  inline NAME operator-(NAME a) {                                                             \
    a.bits ^= 0x8000;                                                                         \
    return a;                                                                                 \
  }                                                                                           \
  inline bool operator==(NAME a, NAME b) { return float(a) == float(b); }                     \
  inline bool operator!=(NAME a, NAME b) { return float(a) != float(b); }                     \
  inline bool operator<(NAME a, NAME b) { return float(a) < float(b); }                       \
  inline bool operator<=(NAME a, NAME b) { return float(a) <= float(b); }                     \
  inline bool operator>(NAME a, NAME b) { return float(a) > float(b); }                       \
  inline bool operator>=(NAME a, NAME b) { return float(a) >= float(b); }                     \
  inline NAME __hadd(NAME a, NAME b) { return a + b; }                                        \
  inline NAME __hsub(NAME a, NAME b) { return a - b; }                                        \
  inline NAME __hmul(NAME a, NAME b) { return a * b; }                                        \
  inline NAME __hdiv(NAME a, NAME b) { return a / b; }                                        \
  inline NAME __hneg(NAME a) { return -a; }                                                   \
  inline NAME __hfma(NAME a, NAME b, NAME c) {                                                \
    return NAME(double(float(a)) * double(float(b)) + double(float(c)));                      \
  }                                                                                           \
  inline bool __hisnan(NAME a) { return float(a) != float(a); }

TCGEMM_SIXTEEN_BIT(__half, float_of_half, half_of_float)
TCGEMM_SIXTEEN_BIT(__nv_bfloat16, float_of_bfloat16, bfloat16_of_float)
#undef TCGEMM_SIXTEEN_BIT
using half = __half;
using nv_bfloat16 = __nv_bfloat16;

inline float __half2float(__half h) { return h; }
inline __half __float2half(float f) { return __half(f); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __double2half(double d) { return __half(d); }
inline unsigned short __half_as_ushort(__half h) { return h.bits; }
inline __half __ushort_as_half(unsigned short bits) {
  return tcgemm::simulator::bits_as<__half>(bits);
}
inline float __bfloat162float(__nv_bfloat16 b) { return b; }
inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  return tcgemm::simulator::bits_as<__nv_bfloat16>(bits);
}

#define TCGEMM_FP8(NAME, MANTISSA)                                                         \
  struct NAME {                                                                            \
    uint8_t __x;                                                                           \
    NAME() = default;                                                                      \
    explicit NAME(float f) : __x(tcgemm::simulator::fp8_of_float<MANTISSA>(f)) {}          \
    explicit NAME(__half h) : NAME(float(h)) {}                                            \
    explicit NAME(__nv_bfloat16 b) : NAME(float(b)) {}                                     \
    explicit operator float() const {                                                      \
      return tcgemm::simulator::float_of_fp8<MANTISSA>(__x);                               \
    }                                                                                      \
  };
TCGEMM_FP8(__nv_fp8_e4m3, 3)
TCGEMM_FP8(__nv_fp8_e5m2, 2)
#undef TCGEMM_FP8

// Vector types. A copy is one access of the full width, as on the GPU: the assembler barrier keeps
// the compiler from splitting it into loads of the members.
namespace tcgemm::simulator {
template <int bytes>
struct Wide {
  typedef uint8_t Type __attribute__((vector_size(bytes), may_alias));
};
template <int bytes>
inline __attribute__((always_inline)) void copy_wide(void* to, const void* from) {
  if constexpr (bytes == 16) {
    typename Wide<16>::Type v = *static_cast<const typename Wide<16>::Type*>(from);
#if defined(__x86_64__)
    asm("" : "+x"(v));
#else
    asm("" : "+m"(v));
#endif
    *static_cast<typename Wide<16>::Type*>(to) = v;
  } else {
    using Word [[gnu::may_alias]] =
        std::conditional_t<bytes == 8, uint64_t, std::conditional_t<bytes == 4, uint32_t, uint16_t>>;
    Word v = *static_cast<const Word*>(from);
    asm("" : "+r"(v));
    *static_cast<Word*>(to) = v;
  }
}
}  // namespace tcgemm::simulator

#define TCGEMM_COPIED_WHOLE(NAME, BYTES)                                 \
  NAME() = default;                                                      \
  NAME(const NAME& o) { tcgemm::simulator::copy_wide<BYTES>(this, &o); } \
  NAME& operator=(const NAME& o) {                                       \
    tcgemm::simulator::copy_wide<BYTES>(this, &o);                       \
    return *this;                                                        \
  }
#define TCGEMM_VECTORS(NAME, T, ALIGN2, ALIGN4)                                      \
  struct NAME##1 {                                                                   \
    T x;                                                                             \
  };                                                                                 \
  struct __attribute__((aligned(ALIGN2))) NAME##2 {                                  \
    T x, y;                                                                          \
    TCGEMM_COPIED_WHOLE(NAME##2, ALIGN2)                                             \
    NAME##2(T x_, T y_) : x(x_), y(y_) {}                                            \
  };                                                                                 \
  struct NAME##3 {                                                                   \
    T x, y, z;                                                                       \
  };                                                                                 \
  struct __attribute__((aligned(ALIGN4))) NAME##4 {                                  \
    T x, y, z, w;                                                                    \
    TCGEMM_COPIED_WHOLE(NAME##4, ALIGN4)                                             \
    NAME##4(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {}                  \
  };                                                                                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return NAME##2(x, y); }                  \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return NAME##3{x, y, z}; }          \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return NAME##4(x, y, z, w); }
TCGEMM_VECTORS(char, signed char, 2, 4)
TCGEMM_VECTORS(uchar, unsigned char, 2, 4)
TCGEMM_VECTORS(short, short, 4, 8)
TCGEMM_VECTORS(ushort, unsigned short, 4, 8)
TCGEMM_VECTORS(int, int, 8, 16)
TCGEMM_VECTORS(uint, unsigned, 8, 16)
TCGEMM_VECTORS(float, float, 8, 16)
#undef TCGEMM_VECTORS

struct __attribute__((aligned(16))) double2 {
  double x, y;
  TCGEMM_COPIED_WHOLE(double2, 16)
  double2(double x_, double y_) : x(x_), y(y_) {}
};
inline double2 make_double2(double x, double y) { return double2(x, y); }
struct __attribute__((aligned(16))) longlong2 {
  long long x, y;
  TCGEMM_COPIED_WHOLE(longlong2, 16)
  longlong2(long long x_, long long y_) : x(x_), y(y_) {}
};
inline longlong2 make_longlong2(long long x, long long y) { return longlong2(x, y); }

#define TCGEMM_PAIR(NAME, T, SUFFIX)                                                           \
  struct __attribute__((aligned(4))) NAME {                                                    \
    T x, y;                                                                                    \
    TCGEMM_COPIED_WHOLE(NAME, 4)                                                               \
    NAME(T x_, T y_) : x(x_), y(y_) {}                                                         \
  };                                                                                           \
  inline NAME __hadd2(NAME a, NAME b) { return NAME(a.x + b.x, a.y + b.y); }                   \
  inline NAME __hsub2(NAME a, NAME b) { return NAME(a.x - b.x, a.y - b.y); }                   \
  inline NAME __hmul2(NAME a, NAME b) { return NAME(a.x * b.x, a.y * b.y); }                   \
  inline NAME __hfma2(NAME a, NAME b, NAME c) {                                                \
    return NAME(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                 \
  }                                                                                            \
  inline NAME operator+(const NAME& a, const NAME& b) { return __hadd2(a, b); }                \
  inline NAME operator-(const NAME& a, const NAME& b) { return __hsub2(a, b); }                \
  inline NAME operator*(const NAME& a, const NAME& b) { return __hmul2(a, b); }                \
  inline T __low2##SUFFIX(NAME a) { return a.x; }                                              \
  inline T __high2##SUFFIX(NAME a) { return a.y; }                                             \
  inline float __low2float(NAME a) { return a.x; }                                             \
  inline float __high2float(NAME a) { return a.y; }
TCGEMM_PAIR(__half2, __half, half)
TCGEMM_PAIR(__nv_bfloat162, __nv_bfloat16, bfloat16)
#undef TCGEMM_PAIR
#undef TCGEMM_COPIED_WHOLE
using half2 = __half2;
using nv_bfloat162 = __nv_bfloat162;
inline __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
inline __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
inline __half2 __half2half2(__half a) { return __half2(a, a); }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
inline __half2 __float2half2_rn(float a) { return __half2(__half(a), __half(a)); }
inline __half2 __float22half2_rn(float2 a) { return __floats2half2_rn(a.x, a.y); }
inline __half2 make_half2(__half a, __half b) { return __half2(a, b); }
inline float2 __half22float2(__half2 a) { return float2(a.x, a.y); }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat162(a, b);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b));
}
inline __nv_bfloat162 __float2bfloat162_rn(float a) { return __floats2bfloat162_rn(a, a); }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return __floats2bfloat162_rn(a.x, a.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return float2(a.x, a.y); }

inline float __int_as_float(int i) { return tcgemm::simulator::bits_as<float>(i); }
inline int __float_as_int(float f) { return tcgemm::simulator::bits_as<int>(f); }
inline float __uint_as_float(unsigned i) { return tcgemm::simulator::bits_as<float>(i); }
inline unsigned __float_as_uint(float f) { return tcgemm::simulator::bits_as<unsigned>(f); }
// Byte i of the result is that of the eight of y:x which digit i of `selector` names.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return result;
}

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(const uint3& v) : x(v.x), y(v.y), z(v.z) {}
};
