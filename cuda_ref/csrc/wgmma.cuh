// wgmma: the warpgroup's matrix multiply, D[64, N] += A[64, 16] @ B[16, N], with D in registers and
// both operands in shared memory behind descriptors.
//
// One shared-memory layout serves all operands: panels whose rows are 128 bytes (64 elements of 16
// bits), written by TMA with its 128-byte swizzle, each panel at a multiple of 1024 bytes.
//
//   K-major (A row-major, B stored transposed): a row holds 64 elements along K of one m or n.
//     The tile is one panel of BLOCK_M or BLOCK_N rows. 16 further along K: 32 bytes on.
//   MN-major (A stored transposed, B row-major): a row holds 64 elements along M or N of one k.
//     The tile is one panel of 64 rows (k) per 64 of M or N. 16 further along K: 2048 bytes on.
//
// In both, 64 further along M or N is 8192 bytes on.
#pragma once

#include "sm90.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace tcgemm::sm90 {

#ifndef TCGEMM_SIMULATOR
enum class Major { K, MN };
#endif

constexpr int PANEL = 64;                    // elements in a row of 128 bytes
constexpr int MMA_K = 16;                    // elements of K in one wgmma
constexpr uint32_t BYTES_PER_64_MN = 8192;   // 64 of M or N by 64 of K

// The descriptor of an operand that starts at `shared`. Fields in units of 16 bytes: bits 0-13 the
// address, 16-29 the leading offset (MN-major: from 64 of M or N to the next 64; K-major: not
// used), 32-45 the stride offset (from 8 rows to the next 8: 1024 bytes), 62-63 = 1 the 128-byte
// swizzle. The base offset (49-51) is 0 because panels start at multiples of 1024 bytes.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t shared) {
  return static_cast<uint64_t>((shared & 0x3FFFF) >> 4) |
         static_cast<uint64_t>(BYTES_PER_64_MN >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

// What to add to a descriptor for each MMA_K further along K.
template <Major MAJOR>
constexpr uint64_t DESCRIPTOR_PER_MMA_K = (MAJOR == Major::K ? MMA_K * 2 : MMA_K * 128) >> 4;

#ifndef TCGEMM_SIMULATOR

// Before the first wgmma, and whenever ordinary code has touched the accumulators.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING groups of this warp are still in flight. It speaks for this warp
// alone: the other three may still be reading B.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define TCGEMM_ACCUMULATORS_8(d, i)                                                      \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])

#define TCGEMM_WGMMA_M64N128K16(TYPE)                                                             \
  asm volatile(                                                                                   \
      "{\n"                                                                                       \
      ".reg .pred p;\n"                                                                           \
      "setp.ne.b32 p, %66, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " "                            \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                         \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                                   \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                                 \
      " %24, %25, %26, %27, %28, %29, %30, %31, "                                                 \
      " %32, %33, %34, %35, %36, %37, %38, %39, "                                                 \
      " %40, %41, %42, %43, %44, %45, %46, %47, "                                                 \
      " %48, %49, %50, %51, %52, %53, %54, %55, "                                                 \
      " %56, %57, %58, %59, %60, %61, %62, %63}, "                                                \
      "%64, %65, p, 1, 1, %67, %68;\n"                                                            \
      "}\n"                                                                                       \
      : TCGEMM_ACCUMULATORS_8(d, 0),                                                              \
        TCGEMM_ACCUMULATORS_8(d, 8),                                                              \
        TCGEMM_ACCUMULATORS_8(d, 16),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 24),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 32),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 40),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 48),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 56)                                                              \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

#define TCGEMM_WGMMA_M64N256K16(TYPE)                                                             \
  asm volatile(                                                                                   \
      "{\n"                                                                                       \
      ".reg .pred p;\n"                                                                           \
      "setp.ne.b32 p, %130, 0;\n"                                                                 \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " "                            \
      "{%0, %1, %2, %3, %4, %5, %6, %7, "                                                         \
      " %8, %9, %10, %11, %12, %13, %14, %15, "                                                   \
      " %16, %17, %18, %19, %20, %21, %22, %23, "                                                 \
      " %24, %25, %26, %27, %28, %29, %30, %31, "                                                 \
      " %32, %33, %34, %35, %36, %37, %38, %39, "                                                 \
      " %40, %41, %42, %43, %44, %45, %46, %47, "                                                 \
      " %48, %49, %50, %51, %52, %53, %54, %55, "                                                 \
      " %56, %57, %58, %59, %60, %61, %62, %63, "                                                 \
      " %64, %65, %66, %67, %68, %69, %70, %71, "                                                 \
      " %72, %73, %74, %75, %76, %77, %78, %79, "                                                 \
      " %80, %81, %82, %83, %84, %85, %86, %87, "                                                 \
      " %88, %89, %90, %91, %92, %93, %94, %95, "                                                 \
      " %96, %97, %98, %99, %100, %101, %102, %103, "                                             \
      " %104, %105, %106, %107, %108, %109, %110, %111, "                                         \
      " %112, %113, %114, %115, %116, %117, %118, %119, "                                         \
      " %120, %121, %122, %123, %124, %125, %126, %127}, "                                        \
      "%128, %129, p, 1, 1, %131, %132;\n"                                                        \
      "}\n"                                                                                       \
      : TCGEMM_ACCUMULATORS_8(d, 0),                                                              \
        TCGEMM_ACCUMULATORS_8(d, 8),                                                              \
        TCGEMM_ACCUMULATORS_8(d, 16),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 24),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 32),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 40),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 48),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 56),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 64),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 72),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 80),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 88),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 96),                                                             \
        TCGEMM_ACCUMULATORS_8(d, 104),                                                            \
        TCGEMM_ACCUMULATORS_8(d, 112),                                                            \
        TCGEMM_ACCUMULATORS_8(d, 120)                                                             \
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)), "n"(TRANS_A), "n"(TRANS_B))

// Accumulators of a warpgroup: thread t of 128 holds rows 16 (t / 32) + t % 32 / 4 and 8 below it;
// d[4 j + 0, 1] are columns 8 j + 2 (t % 4) and the next of the upper row, d[4 j + 2, 3] of the
// lower. With accumulate = false D is overwritten, whatever the registers held.

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b,
                                               bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N128K16("f16");
  } else {
    TCGEMM_WGMMA_M64N128K16("bf16");
  }
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b,
                                               bool accumulate) {
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;
  if constexpr (std::is_same_v<In, __half>) {
    TCGEMM_WGMMA_M64N256K16("f16");
  } else {
    TCGEMM_WGMMA_M64N256K16("bf16");
  }
}

#undef TCGEMM_WGMMA_M64N128K16
#undef TCGEMM_WGMMA_M64N256K16
#undef TCGEMM_ACCUMULATORS_8

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm::sm90
