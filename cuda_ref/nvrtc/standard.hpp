// What the sources use of C++'s library, for NVRTC, which has none: as little as compiles.
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
typedef unsigned long size_t;
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INFINITY __int_as_float(0x7f800000)

namespace std {

template <typename T, T VALUE>
struct integral_constant {
  static constexpr T value = VALUE;
  using value_type = T;
  constexpr operator T() const { return VALUE; }
};
using true_type = integral_constant<bool, true>;
using false_type = integral_constant<bool, false>;

template <typename A, typename B>
struct is_same : false_type {};
template <typename A>
struct is_same<A, A> : true_type {};
template <typename A, typename B>
inline constexpr bool is_same_v = is_same<A, B>::value;

template <bool CHOICE, typename A, typename B>
struct conditional {
  using type = A;
};
template <typename A, typename B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool CHOICE, typename A, typename B>
using conditional_t = typename conditional<CHOICE, A, B>::type;

template <typename T, typename... Among>
inline constexpr bool is_one_of = (is_same_v<T, Among> || ...);
template <typename T>
inline constexpr bool is_integral_v =
    is_one_of<T, bool, char, signed char, unsigned char, short, unsigned short, int, unsigned int,
              long, unsigned long, long long, unsigned long long>;

template <typename T>
constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

// Of host code that is parsed and never run.
template <typename T, size_t COUNT>
struct array {
  T items[COUNT];
  T& operator[](size_t i) { return items[i]; }
  constexpr size_t size() const { return COUNT; }
};
template <typename T>
struct atomic {
  T item;
  atomic& operator=(T x) {
    item = x;
    return *this;
  }
  operator T() const { return item; }
};

}  // namespace std

struct pthread_mutex_t {};
#define PTHREAD_MUTEX_INITIALIZER {}
inline void pthread_mutex_lock(pthread_mutex_t*) {}
inline void pthread_mutex_unlock(pthread_mutex_t*) {}
