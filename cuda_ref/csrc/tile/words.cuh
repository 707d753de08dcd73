// A matrix that is walked along its rows, by words of 16 bytes or by single elements.
#pragma once

#include "sm90/tile.cuh"

namespace tcgemm {

// M x N elements of any strides.
template <typename T>
struct View {
  T* data;
  int64_t row_stride, col_stride;

  __device__ __forceinline__ T* at(int64_t row, int64_t col) const {
    return data + row * row_stride + col * col_stride;
  }
  __device__ __forceinline__ void move_to(int64_t row, int64_t col) { data = at(row, col); }
};

// Elements of a word.
template <typename T>
constexpr int WORD = 16 / sizeof(T);

// Zeros, or a word of T.
template <typename T>
struct Word {
  uint32_t bits[4] = {};

  __device__ __forceinline__ void load(const T* from) {
    set(*reinterpret_cast<const uint4*>(from));
  }
  // Nobody shall read it again: it is the first to leave the L2.
  __device__ __forceinline__ void load_streaming(const T* from) {
    set(__ldcs(reinterpret_cast<const uint4*>(from)));
  }
  __device__ __forceinline__ void set(uint4 word) {
    bits[0] = word.x, bits[1] = word.y, bits[2] = word.z, bits[3] = word.w;
  }
  __device__ __forceinline__ float operator[](int e) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(bits[e]);
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(bits[e / 2]));
      return e % 2 ? pair.y : pair.x;
    } else {  // the upper half of the same float
      return __uint_as_float(e % 2 ? bits[e / 2] & 0xffff0000u : bits[e / 2] << 16);
    }
  }
};

// The same number of elements, that lie anywhere.
template <typename T>
struct Elements {
  T elements[WORD<T>];

  __device__ __forceinline__ Elements() {
#pragma unroll
    for (T& element : elements) element = zero<T>();
  }
  __device__ __forceinline__ float operator[](int e) const { return to_float(elements[e]); }
};

// Narrows floats and stores them as neighbours, in 8 bytes or a word.
template <typename Out, int COUNT>
__device__ __forceinline__ void store_neighbours(Out* to, const float (&x)[COUNT]) {
  static_assert(COUNT * sizeof(Out) == 16 || COUNT * sizeof(Out) == 8);
  if constexpr (std::is_same_v<Out, float>) {
    st_global_16(to, make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                __float_as_uint(x[2]), __float_as_uint(x[3])));
  } else {
    const uint32_t low = sm90::pack<Out>(x[0], x[1]), high = sm90::pack<Out>(x[2], x[3]);
    if constexpr (COUNT == 4)
      *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
    else
      st_global_16(to, make_uint4(low, high, sm90::pack<Out>(x[4], x[5]),
                                  sm90::pack<Out>(x[6], x[7])));
  }
}

}  // namespace tcgemm
