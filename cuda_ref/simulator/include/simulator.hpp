// CUDA on a CPU: what a .cu file needs in place of CUDA's headers. The kernel is compiled by g++;
// its launch goes to tcgemm::launch below.
#pragma once

// Before the macros below, which the standard headers would trip over.
#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "hopper.hpp"
#include "runtime.hpp"
#include "types.hpp"
#include "wmma.hpp"

#define __CUDA_ARCH__ 800
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __cluster_dims__(...)
#define __constant__ static
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))
// g++ takes no alignas behind a storage class, nvcc does.
#define alignas(n) __attribute__((aligned(n)))
// One copy per process, and a process runs one block at a time: see ../src/cluster.hpp.
#define __shared__ thread_local

using std::max;
using std::min;

using cudaStream_t = void*;
using cudaError_t = int;
enum : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNotSupported = 801,
};
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "invalid argument";
  }
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
// Few enough that a persistent kernel's blocks have several tiles at small sizes.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 8;
  return cudaSuccess;
}

#define threadIdx (::tcgemm::simulator::current_indices->thread)
#define blockIdx (::tcgemm::simulator::block_index)
#define blockDim (::tcgemm::simulator::block_dim)
#define gridDim (::tcgemm::simulator::grid_dim)
constexpr int warpSize = 32;

inline void __syncthreads(TCGEMM_HERE) { tcgemm::simulator::sync_threads(site); }
inline int __syncthreads_count(int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::sync_threads_count(predicate, site);
}
inline int __syncthreads_or(int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::sync_threads_count(predicate, site) != 0;
}
inline int __syncthreads_and(int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::sync_threads_count(!predicate, site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffff, TCGEMM_HERE) {
  tcgemm::simulator::sync_warp(mask, site);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, TCGEMM_HERE) {
  int lane = tcgemm::simulator::lane_index();
  tcgemm::simulator::shuffle(mask, &value, sizeof(T), (lane & -width) | (source & (width - 1)),
                             site);
  return value;
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, TCGEMM_HERE) {
  int lane = tcgemm::simulator::lane_index(), from = lane ^ bits;
  if ((from & -width) > (lane & -width)) from = lane;
  tcgemm::simulator::shuffle(mask, &value, sizeof(T), from, site);
  return value;
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, TCGEMM_HERE) {
  int lane = tcgemm::simulator::lane_index(), from = lane + static_cast<int>(delta);
  if ((from & -width) != (lane & -width)) from = lane;
  tcgemm::simulator::shuffle(mask, &value, sizeof(T), from, site);
  return value;
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, TCGEMM_HERE) {
  int lane = tcgemm::simulator::lane_index(), from = lane - static_cast<int>(delta);
  if (from < (lane & -width)) from = lane;
  tcgemm::simulator::shuffle(mask, &value, sizeof(T), from, site);
  return value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::vote(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::vote(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, TCGEMM_HERE) {
  return tcgemm::simulator::vote(mask, predicate == 0, site) == 0;
}
inline unsigned __activemask() { return tcgemm::simulator::active_lanes(); }

template <typename T>
inline T __ldg(const T* p) { return *p; }
template <typename T>
inline T __ldcg(const T* p) { return *p; }
template <typename T>
inline T __ldca(const T* p) { return *p; }
template <typename T>
inline T __ldcs(const T* p) { return *p; }
template <typename T>
inline void __stcg(T* p, T v) { *p = v; }
template <typename T>
inline void __stcs(T* p, T v) { *p = v; }
template <typename T>
inline void __stwt(T* p, T v) { *p = v; }

inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline int __float2int_rn(float f) { return static_cast<int>(std::nearbyint(f)); }
inline float __int2float_rn(int i) { return static_cast<float>(i); }
inline int __dp4a(int a, int b, int c) {
  uint32_t sum = static_cast<uint32_t>(c);
  for (int i = 0; i < 4; ++i)
    sum += static_cast<uint32_t>(int8_t(a >> 8 * i) * int8_t(b >> 8 * i));
  return static_cast<int>(sum);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }

inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1) << (31 - i);
  return reversed;
}
inline void __trap() { __builtin_trap(); }

// Its caller is the kernel, whose line a finding names.
#define TCGEMM_ATOMIC(NAME, NEXT)                                                            \
  template <typename T>                                                                      \
  __attribute__((always_inline)) inline T NAME(T* address, std::common_type_t<T> value) {    \
    return tcgemm::simulator::atomic_update(address, [=](T before) { return NEXT; });        \
  }
TCGEMM_ATOMIC(atomicAdd, before + value)
TCGEMM_ATOMIC(atomicSub, before - value)
TCGEMM_ATOMIC(atomicMin, min(before, value))
TCGEMM_ATOMIC(atomicMax, max(before, value))
TCGEMM_ATOMIC(atomicAnd, before & value)
TCGEMM_ATOMIC(atomicOr, before | value)
TCGEMM_ATOMIC(atomicXor, before ^ value)
TCGEMM_ATOMIC(atomicExch, (void(before), value))
#undef TCGEMM_ATOMIC
template <typename T>
__attribute__((always_inline)) inline T atomicCAS(T* address, std::common_type_t<T> expected,
                                                  std::common_type_t<T> value) {
  return tcgemm::simulator::atomic_update(
      address, [=](T before) { return before == expected ? value : before; });
}

// value of all lanes in the mask, one after the other.
template <typename T, typename Combine>
inline T tcgemm_reduce(unsigned mask, T value, Combine combine, tcgemm::simulator::Site site) {
  T sum{};
  bool first = true;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    T other = value;
    tcgemm::simulator::shuffle(mask, &other, sizeof(T), lane, site);
    sum = first ? other : combine(sum, other);
    first = false;
  }
  return sum;
}
#define TCGEMM_REDUCE(NAME, RESULT)                                                       \
  template <typename T>                                                                   \
  inline T NAME(unsigned mask, T value, TCGEMM_HERE) {                                    \
    return tcgemm_reduce(mask, value, [](T a, T b) { return static_cast<T>(RESULT); }, site); \
  }
TCGEMM_REDUCE(__reduce_add_sync, a + b)
TCGEMM_REDUCE(__reduce_min_sync, a < b ? a : b)
TCGEMM_REDUCE(__reduce_max_sync, a > b ? a : b)
TCGEMM_REDUCE(__reduce_and_sync, a & b)
TCGEMM_REDUCE(__reduce_or_sync, a | b)
TCGEMM_REDUCE(__reduce_xor_sync, a ^ b)
#undef TCGEMM_REDUCE
template <typename T>
inline unsigned __match_any_sync(unsigned mask, T value, TCGEMM_HERE) {
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    T other = value;
    tcgemm::simulator::shuffle(mask, &other, sizeof(T), lane, site);
    if (other == value) same |= 1u << lane;
  }
  return same;
}

inline size_t __cvta_generic_to_shared(const void* p) {
  return tcgemm::simulator::shared_address(p);
}
inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes,
                                    size_t zero_fill = 0, TCGEMM_HERE) {
  tcgemm::simulator::copy_async(shared, global, static_cast<int>(bytes),
                                static_cast<int>(bytes - zero_fill), bytes < 16, site);
}
inline void __pipeline_commit() { tcgemm::simulator::copy_async_commit(); }
inline void __pipeline_wait_prior(size_t pending) {
  tcgemm::simulator::copy_async_wait(static_cast<int>(pending));
}

namespace tcgemm {

namespace simulator {

template <typename... Params, typename... Args>
int launch_grid(void (*kernel)(Params...), dim3 grid, unsigned cluster, dim3 block,
                size_t shared_bytes, Args... args) {
  using Tuple = std::tuple<std::decay_t<Params>...>;
  using Kernel = void (*)(Params...);
  Tuple params(static_cast<Params>(args)...);
  Launch launch;
  launch.invoke = [](const void* pointer, void* closure) {
    std::apply(reinterpret_cast<Kernel>(const_cast<void*>(pointer)),
               *static_cast<Tuple*>(closure));
  };
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.params = &params;
  launch.params_bytes = sizeof(params);
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.cluster = cluster;
  return run_grid(launch);
}

}  // namespace simulator

// Starts the kernel and runs it to its end, in clusters where its file declares them.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t,
           Args... args) {
  return simulator::launch_grid(kernel, grid, 0, block, shared_bytes, args...);
}

namespace sm90 {

template <typename... Params, typename... Args>
int launch_clusters(void (*kernel)(Params...), unsigned clusters, unsigned cluster, dim3 block,
                    size_t shared_bytes, cudaStream_t, Args... args) {
  return simulator::launch_grid(kernel, dim3(clusters * cluster), cluster, block, shared_bytes,
                                args...);
}
template <typename... Params, typename... Args>
int launch_clusters(bool, void (*kernel)(Params...), unsigned clusters, unsigned cluster,
                    dim3 block, size_t shared_bytes, cudaStream_t stream, Args... args) {
  return launch_clusters(kernel, clusters, cluster, block, shared_bytes, stream, args...);
}

}  // namespace sm90

// The wrappers of csrc/convert.cuh and csrc/tf32.cuh.

inline float to_tf32(float x) { return simulator::tf32_of_float(x); }
inline void mma_m16n8k8_tf32(float* d, const float* a, const float* b, TCGEMM_HERE) {
  using simulator::Element;
  simulator::mma_ptx(8, Element::tf32, Element::f32, Element::tf32, d, a, b, d, site);
}

// The wrappers of csrc/mma.cuh.

inline void keep_in_register(int&) {}
template <bool TRANSPOSED>
inline void ldmatrix_x4(uint32_t (&m)[4], uint32_t shared, TCGEMM_HERE) {
  simulator::ldmatrix(m, simulator::shared_pointer(shared), 4, TRANSPOSED, site);
}
template <typename In>
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         TCGEMM_HERE) {
  using simulator::Element;
  constexpr Element IN = std::is_same_v<In, __half> ? Element::f16 : Element::bf16;
  const uint32_t b[2] = {b0, b1};
  simulator::mma_ptx(16, IN, Element::f32, IN, d, a, b, d, site);
}
inline void mma_m16n8k8_f64(double (&d)[4], const double (&a)[4], const double (&b)[2],
                            TCGEMM_HERE) {
  using simulator::Element;
  simulator::mma_ptx(8, Element::f64, Element::f64, Element::f64, d, a, b, d, site);
}

// The wrappers of csrc/copy.cuh.

inline unsigned char* dynamic_shared() { return simulator::dynamic_shared_memory(); }
inline void cp_async_16(void* shared, const void* global, TCGEMM_HERE) {
  simulator::copy_async(shared, global, 16, 16, false, site);
}
inline void cp_async_ca_16(void* shared, const void* global, TCGEMM_HERE) {
  simulator::copy_async(shared, global, 16, 16, true, site);
}
inline void cp_async_16(void* shared, const void* global, int bytes, TCGEMM_HERE) {
  simulator::copy_async(shared, global, 16, bytes, false, site);
}
template <int SIZE>
inline void cp_async_element(void* shared, const void* global, int bytes, TCGEMM_HERE) {
  simulator::copy_async(shared, global, SIZE, bytes, true, site);
}
inline void cp_async_commit() { simulator::copy_async_commit(); }
template <int PENDING>
inline void cp_async_wait() {
  simulator::copy_async_wait(PENDING);
}
inline void st_global_16(void* global, const uint4& vector) {
  *static_cast<uint4*>(global) = vector;
}

}  // namespace tcgemm
