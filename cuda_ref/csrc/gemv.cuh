// How a warp of gemv.cu loads and multiplies a step of K; and what it asks of the machine beyond
// sm90.cuh, each wrapper named after its instruction.
#pragma once

#include "mma.cuh"
#include "sm90.cuh"

#ifndef TCGEMM_SIMULATOR  // which has these names in hopper.hpp

namespace tcgemm::sm90 {

// Sixteen bytes that are read once: past the L1, and the first to leave the L2, which is told to
// fetch AROUND bytes, 64 or 256: those of a row that the next loads will ask for.
template <int AROUND>
__device__ __forceinline__ uint4 ld_global_evict_first(const void* from) {
  constexpr uint64_t EVICT_FIRST = 0x12F0000000000000;  // as createpolicy makes it
  uint4 v;
  if constexpr (AROUND == 256) {
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from), "l"(EVICT_FIRST));
  } else {
    asm volatile(
        "ld.global.nc.L1::no_allocate.L2::cache_hint.L2::64B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from), "l"(EVICT_FIRST));
  }
  return v;
}

// Asks for a line to be brought into the L2. It may stand before griddepcontrol_wait, as the
// program sees nothing of it.
__device__ __forceinline__ void prefetch_global_l2(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// A float at the same offset in block `cta` of the cluster.
__device__ __forceinline__ float ld_shared_cluster(uint32_t at, uint32_t cta) {
  float x;
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.f32 %0, [there];\n"
      "}\n"
      : "=f"(x)
      : "r"(at), "r"(cta)
      : "memory");
  return x;
}

}  // namespace tcgemm::sm90

#endif  // TCGEMM_SIMULATOR

namespace tcgemm::sm90 {

constexpr int STEP_K = 32;  // of one 16-byte vector of A for each thread

// How far a warp loads ahead, in steps of STEP_K, and its columns: with B stored by columns
// (K-major) a thread loads columns g and g + 8, with B stored by rows 8 columns of 8 rows.
template <bool K_MAJOR>
struct Shape {
  static constexpr int COLS = K_MAJOR ? 16 : 64;
  static constexpr int VECTORS = K_MAJOR ? 2 : 8;  // of 16 bytes, a thread and step
  static constexpr int AHEAD = K_MAJOR ? 4 : 2;
  static constexpr int TILES = COLS / 16;
};

struct Operands {
  const uint16_t *a, *b;
  // Elements between rows of A, between its neighbours along K, and between rows of B as stored.
  int64_t a_stride, a_step, b_stride;
  int64_t a_batch, b_batch;
  bool a_vectors;  // 16-byte vectors along the rows of A
  int M, N, K;
};

__device__ __forceinline__ uint4 zeros() { return make_uint4(0, 0, 0, 0); }

// Eight elements `step` apart, of which the first `inside` exist; zeros for the others.
__device__ __forceinline__ uint4 load_some(const uint16_t* from, int64_t step, int inside) {
  union {
    uint16_t elements[8];
    uint4 vector;
  } eight{};
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (e < inside) eight.elements[e] = from[e * step];
  return eight.vector;
}

// Of two words that hold two columns of two rows of k, one column's elements.
__device__ __forceinline__ uint32_t even(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x5410);
}
__device__ __forceinline__ uint32_t odd(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x7632);
}

template <bool K_MAJOR>
struct Step {
  uint4 a, b[Shape<K_MAJOR>::VECTORS];

  // Loads step `k`, whose 32 elements along K all exist if `whole`. Of B's columns from `n` on
  // `columns` exist.
  __device__ __forceinline__ void load(const Operands& o, int n, int k, bool whole, int columns) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int mine = k + 8 * t, inside = whole ? 8 : o.K - mine;
    a = zeros();
    if (g < o.M) {
      const uint16_t* from = o.a + g * o.a_stride + mine * o.a_step;
      a = o.a_vectors && inside >= 8 ? *reinterpret_cast<const uint4*>(from)
                                     : load_some(from, o.a_step, inside);
    }
    if constexpr (K_MAJOR) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = g + 8 * i < columns ? g + 8 * i : columns - 1;
        const uint16_t* from = o.b + (n + column) * o.b_stride + mine;
        b[i] = inside >= 8 ? ld_global_evict_first<256>(from) : load_some(from, 1, inside);
      }
    } else {
      const int columns_here = columns - 8 * g;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint16_t* from = o.b + (mine + i) * o.b_stride + n + 8 * g;
        if (i >= inside)
          b[i] = zeros();
        else
          b[i] = columns_here >= 8 ? ld_global_evict_first<64>(from)
                                   : load_some(from, 1, columns_here);
      }
    }
  }

  // Brings step `k` of B into the L2.
  static __device__ __forceinline__ void prefetch(const Operands& o, int n, int k, int columns) {
    const int lane = threadIdx.x % 32;
    if constexpr (K_MAJOR) {  // 64 bytes of 16 columns
      if (lane < columns && lane < 16) prefetch_global_l2(o.b + (n + lane) * o.b_stride + k);
    } else {  // 128 bytes of 32 rows
      prefetch_global_l2(o.b + (k + lane) * o.b_stride + n);
    }
  }

  template <typename In>
  __device__ __forceinline__ void multiply(float (&d)[Shape<K_MAJOR>::TILES][4]) const {
    if constexpr (K_MAJOR) {
      mma_m16n8k16<In>(d[0], {b[0].x, b[1].x, b[0].y, b[1].y}, a.x, a.y);
      mma_m16n8k16<In>(d[0], {b[0].z, b[1].z, b[0].w, b[1].w}, a.z, a.w);
    } else {
      multiply_columns<In>(d[0], d[1], &uint4::x, &uint4::z);
      multiply_columns<In>(d[2], d[3], &uint4::y, &uint4::w);
    }
  }

  // Columns 8 g + 2 w and 8 g + 2 w + 4, where `low` is word w of a vector and `high` word w + 2,
  // to d0, and their neighbours to d1.
  template <typename In>
  __device__ __forceinline__ void multiply_columns(float (&d0)[4], float (&d1)[4],
                                                   uint32_t uint4::* low,
                                                   uint32_t uint4::* high) const {
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const uint32_t a0 = k == 0 ? a.x : a.z, a1 = k == 0 ? a.y : a.w;
      mma_m16n8k16<In>(d0,
                       {even(b[k].*low, b[k + 1].*low), even(b[k].*high, b[k + 1].*high),
                        even(b[k + 2].*low, b[k + 3].*low), even(b[k + 2].*high, b[k + 3].*high)},
                       a0, a1);
      mma_m16n8k16<In>(d1,
                       {odd(b[k].*low, b[k + 1].*low), odd(b[k].*high, b[k + 1].*high),
                        odd(b[k + 2].*low, b[k + 3].*low), odd(b[k + 2].*high, b[k + 3].*high)},
                       a0, a1);
    }
  }
};

}  // namespace tcgemm::sm90
