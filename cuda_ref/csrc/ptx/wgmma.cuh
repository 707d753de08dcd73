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

#include "ptx/sm90.cuh"
#include "ptx/wgmma_registers.cuh"

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

// Accumulators of a warpgroup: thread t of 128 holds rows 16 (t / 32) + t % 32 / 4 and 8 below it;
// d[4 j + 0, 1] are columns 8 j + 2 (t % 4) and the next of the upper row, d[4 j + 2, 3] of the
// lower. With accumulate = false D is overwritten, whatever the registers held.

// Of float16 or bfloat16, with n columns of B and n / 2 accumulators a thread: 16 to 64 for products
// with few rows or columns, 80 to 224 for tiles that fit a matrix better.
#define TCGEMM_WGMMA_16_BITS(COUNT, SHAPE, A_NUMBER, B_NUMBER, P, TAIL)                            \
  constexpr int TRANS_A = A == Major::MN, TRANS_B = B == Major::MN;                               \
  if constexpr (std::is_same_v<In, __half>)                                                       \
    TCGEMM_WGMMA(COUNT, SHAPE ".f32.f16.f16", "+f", A_NUMBER, B_NUMBER, P, TAIL,                  \
                 TCGEMM_DESCRIPTORS, "n"(TRANS_A), "n"(TRANS_B));                                 \
  else                                                                                            \
    TCGEMM_WGMMA(COUNT, SHAPE ".f32.bf16.bf16", "+f", A_NUMBER, B_NUMBER, P, TAIL,                \
                 TCGEMM_DESCRIPTORS, "n"(TRANS_A), "n"(TRANS_B))

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n16k16(float (&d)[8], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(8, "m64n16k16", "%8", "%9", "%10", ", 1, 1, %11, %12");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n48k16(float (&d)[24], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(24, "m64n48k16", "%24", "%25", "%26", ", 1, 1, %27, %28");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n56k16(float (&d)[28], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(28, "m64n56k16", "%28", "%29", "%30", ", 1, 1, %31, %32");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[32], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(32, "m64n64k16", "%32", "%33", "%34", ", 1, 1, %35, %36");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n80k16(float (&d)[40], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(40, "m64n80k16", "%40", "%41", "%42", ", 1, 1, %43, %44");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n96k16(float (&d)[48], uint64_t a, uint64_t b,
                                                bool accumulate) {
  TCGEMM_WGMMA_16_BITS(48, "m64n96k16", "%48", "%49", "%50", ", 1, 1, %51, %52");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n112k16(float (&d)[56], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(56, "m64n112k16", "%56", "%57", "%58", ", 1, 1, %59, %60");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(64, "m64n128k16", "%64", "%65", "%66", ", 1, 1, %67, %68");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n144k16(float (&d)[72], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(72, "m64n144k16", "%72", "%73", "%74", ", 1, 1, %75, %76");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n160k16(float (&d)[80], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(80, "m64n160k16", "%80", "%81", "%82", ", 1, 1, %83, %84");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n176k16(float (&d)[88], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(88, "m64n176k16", "%88", "%89", "%90", ", 1, 1, %91, %92");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n192k16(float (&d)[96], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(96, "m64n192k16", "%96", "%97", "%98", ", 1, 1, %99, %100");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n208k16(float (&d)[104], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(104, "m64n208k16", "%104", "%105", "%106", ", 1, 1, %107, %108");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n224k16(float (&d)[112], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(112, "m64n224k16", "%112", "%113", "%114", ", 1, 1, %115, %116");
}

template <typename In, Major A, Major B>
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b,
                                                 bool accumulate) {
  TCGEMM_WGMMA_16_BITS(128, "m64n256k16", "%128", "%129", "%130", ", 1, 1, %131, %132");
}

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm::sm90
