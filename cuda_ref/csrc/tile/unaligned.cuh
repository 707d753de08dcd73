// Eight neighbours of 16 bits, wherever they begin: loaded and stored as vectors of 16 bytes.
#pragma once

#include <cstdint>

namespace tcgemm {

// The two aligned vectors that eight elements lie across, from `shift` elements into the first on.
struct UnalignedVector {
  static constexpr int ELEMENTS = 8;

  uint32_t words[ELEMENTS];
  int shift;

  // The elements at `from`. Memory may be read from `before` elements in front of it to before `after`
  // behind it: where an aligned vector reaches beyond, the `inside` first elements come one by one.
  __device__ __forceinline__ void load(const uint16_t* from, int64_t before, int64_t after,
                                       int inside) {
    shift = elements_before(from);
    if (shift <= before && (shift > 0 ? 2 : 1) * ELEMENTS - shift <= after) {
      const uint16_t* const aligned = from - shift;
      set(0, *reinterpret_cast<const uint4*>(aligned));
      if (shift > 0) set(1, *reinterpret_cast<const uint4*>(aligned + ELEMENTS));
      return;
    }
    shift = 0;
#pragma unroll
    for (int i = 0; i < ELEMENTS / 2; ++i) {
      const uint32_t low = 2 * i < inside ? from[2 * i] : 0;
      const uint32_t high = 2 * i + 1 < inside ? from[2 * i + 1] : 0;
      words[i] = low | high << 16;
    }
  }

  // How many elements an address lies behind a multiple of 16 bytes.
  __device__ __forceinline__ static int elements_before(const void* address) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16 / 2);
  }

  // The first aligned vector, or the second.
  __device__ __forceinline__ void set(int number, uint4 v) {
    uint32_t* const to = words + 4 * number;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }

  // The elements, once they are loaded.
  __device__ __forceinline__ uint4 vector() {
#pragma unroll
    for (int half = 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i + half < ELEMENTS; ++i)
        if (shift / 2 & half) words[i] = words[i + half];
    }
#pragma unroll
    for (int i = 0; i < ELEMENTS / 2; ++i)
      if (shift % 2) words[i] = words[i] >> 16 | words[i + 1] << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

// Stores elements `first` to before `last` of `v` at their places behind `to`, which is aligned, by
// words of 4 bytes and single elements.
__device__ __forceinline__ void store_only(uint16_t* to, uint4 v, int first, int last) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool low = first <= 2 * i && 2 * i < last;
    const bool high = first <= 2 * i + 1 && 2 * i + 1 < last;
    if (low && high)
      reinterpret_cast<uint32_t*>(to)[i] = words[i];
    else if (low)
      to[2 * i] = static_cast<uint16_t>(words[i]);
    else if (high)
      to[2 * i + 1] = static_cast<uint16_t>(words[i] >> 16);
  }
}

}  // namespace tcgemm
