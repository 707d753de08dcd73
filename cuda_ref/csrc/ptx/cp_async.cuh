// Moving bytes from global to shared memory, each wrapper named after its instruction.
#pragma once

#include "host/gemm.cuh"

namespace tcgemm {

// Elements of a 16-bit type in one 16-byte vector.
constexpr int VECTOR = 8;

// True where `pointer` is a multiple of 16 bytes.
inline bool aligned_16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// True where every row of the matrix in its storage order begins at a multiple of 16 bytes.
inline bool rows_aligned(const void* data, int64_t outer, int64_t outer_stride,
                         int64_t inner_stride, int64_t element_bytes) {
  return inner_stride == 1 && aligned_16(data) &&
         (outer == 1 || outer_stride * element_bytes % 16 == 0);
}

#ifndef TCGEMM_SIMULATOR

// The block's dynamic shared memory: as many bytes as `launch` was given.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char bytes[];
  return bytes;
}

// cp.async.cg: 16 bytes from the L2 to shared memory, past registers and L1. Both addresses are
// multiples of 16 bytes. The copy is visible to its own thread after cp_async_wait and to the
// block after the barrier that follows. Sectors of 32 bytes travel: where the address in shared
// memory is 16 mod 32 and that in global memory is not, each is fetched twice.
__device__ inline void cp_async_16(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global) : "memory");
}

// The same of the first `bytes` of the 16, with zeros for the others.
__device__ inline void cp_async_16(void* shared, const void* global, int bytes) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}

// cp.async.ca: the same through the L1, which keeps the line: no sector is fetched twice.
__device__ inline void cp_async_ca_16(void* shared, const void* global) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(global) : "memory");
}

// One element of 4 or 8 bytes, at a multiple of its size, or zeros where `bytes` is 0.
template <int SIZE>
__device__ inline void cp_async_element(void* shared, const void* global, int bytes) {
  static_assert(SIZE == 4 || SIZE == 8);
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(to), "l"(global), "n"(SIZE),
               "r"(bytes)
               : "memory");
}

// Closes a group of the thread's copies; a group may be empty.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most PENDING of the thread's newest groups are in flight.
template <int PENDING>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// st.global.v4: 16 bytes from registers to global memory, a multiple of 16 bytes. Written as four
// assignments, or as one of a uint4, the compiler makes four 4-byte stores of it.
__device__ inline void st_global_16(void* global, uint4 vector) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(global), "r"(vector.x),
               "r"(vector.y), "r"(vector.z), "r"(vector.w)
               : "memory");
}

#endif  // TCGEMM_SIMULATOR

}  // namespace tcgemm
