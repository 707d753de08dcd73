// What every rung is asked, and the few names through which it reaches the machine.
//
// A rung is one .cu file: plain CUDA, no torch. It ends in
//
//     int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream)
//
// which starts the kernel on `stream` and returns a cudaError_t. The rung's row in
// cuda_ref/__init__.py has already refused every problem that the kernel cannot take.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#ifdef TCGEMM_SIMULATOR
#include "simulator.hpp"  // the same names on a CPU: cuda_ref/simulator/
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <mma.h>
#endif

#include "tile/activations.cuh"

namespace tcgemm {

enum class DType : int32_t { f16, bf16, f32, f64, s8, u8, s32, e4m3, e5m2 };

// How products are summed. f32: float32, fp8 promoted to it at every step; fast: fp8 as the tensor
// cores keep it. float32 operands: ieee is multiplied as it is, tf32 rounded first, tf32x3 split
// into two tf32 numbers each and multiplied three times.
enum class Compute : int32_t { f32, fast, f16, s32, f64, ieee, tf32, tf32x3 };

// What the slot of C_in holds in place of C_in: Z, the pre-activation, of C's type and shape.
// write: Z = alpha A B + bias is stored there, and its activation in C. read: C is alpha A B times
// the derivative of the activation at Z.
enum class Aux : int32_t { none, write, read };

// A matrix in global memory, or a batch of them. Strides are in elements, of any sign of zero:
// element (i, j) of matrix z is at data + z * batch_stride + i * row_stride + j * col_stride. All
// index arithmetic on it is 64-bit.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, cols = 0;
  int64_t row_stride = 0, col_stride = 0;
  int64_t batch_stride = 0;
};

// A row or a column that is added to or multiplied with every other one: what belongs to element
// (m, n) of C is at data + m * row_stride + n * col_stride, and one of the strides is 0, or both.
struct Vector {
  const void* data = nullptr;
  int64_t row_stride = 0, col_stride = 0;
};

// Device memory for kernels of one launch on its stream: nullptr where there is none left. Whoever
// calls tcgemm_launch takes it back after the launch, for later work of the same stream.
struct Scratch {
  void* (*allocate)(size_t bytes, cudaStream_t stream) = nullptr;
};

// How the problem is to be run, as Python has planned it: cuda_ref/planning/launch.py has the same
// fields in the same order. A rung obeys the fields that it knows; one of 0 was not planned. The
// simulator, and whoever else calls tcgemm_launch without a plan, lets the rung choose.
struct Plan {
  int32_t cluster = 0;               // blocks that share loads by multicast; 0 and 1: none do
  int32_t block_m = 0, block_n = 0;  // the tile of C
  int32_t splits = 0;                // blocks, or for split_k blocks of a cluster, that divide K
  int32_t groups = 0;                // clusters that divide K
  int32_t warps = 0;                 // of a block
  int32_t blocks = 0;                // to an SM
  int32_t shared_kb = 0;             // of shared memory for a block
  int32_t repack = 0;                // 1: a pass beforehand writes an operand as it is read best
  int32_t no_pdl = 0;                // 1: the next kernel starts only when this one has finished
  int32_t across = 0;                // 1: A is read across K, as it lies; 2: B is, as A of C transposed
};

// C[M, N] = activation(alpha * scale_a * scale_b * (A[M, K] @ B[K, N]) + beta * C_in + bias) for
// each matrix of the batch. A and B are `in`; C, C_in and bias are `out`; the scales are float32. It
// is computed in float32 (float64 for f64, int32 modulo 2^32 for integers) and narrowed once.
// The values that the members have by themselves make it the plain product.
struct Gemm {
  Matrix a, b, c;
  DType in = DType::f16, out = DType::f16;
  int64_t batch = 1;
  double alpha = 1.0, beta = 0.0;
  Matrix c_in;  // data is null where beta is 0 and aux is none; may be C itself
  Vector bias, scale_a, scale_b;  // data is null where there is none
  Activation activation = Activation::none;
  Aux aux = Aux::none;
  Compute compute = Compute::f32;
  int32_t mma_m = 0, mma_n = 0;  // the WMMA shape asked for; 0: the rung's own choice
  Scratch scratch;
  const Plan* plan = nullptr;  // null: a rung chooses itself
};

}  // namespace tcgemm

// Defined by each rung.
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream);

namespace tcgemm {

#ifdef __CUDACC__
// Lets a kernel take all of the dynamic shared memory that a block can have, once on each device,
// whose context is taken to live as long as the process. Up to 48 KB, its static shared memory among
// them, any kernel may take.
inline int allow_shared(const void* kernel, size_t bytes) {
  if (bytes <= 40 * 1024) return cudaSuccess;
  static std::array<std::atomic<uintptr_t>, 64> allowed{};
  int device = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const uintptr_t address = reinterpret_cast<uintptr_t>(kernel), key = 64 * address + device;
  std::atomic<uintptr_t>& known = allowed[(address / 16 + device) % allowed.size()];
  if (known == key) return cudaSuccess;
  cudaFuncAttributes has;
  error = cudaFuncGetAttributes(&has, kernel);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 most - static_cast<int>(has.sharedSizeBytes));
  if (error == cudaSuccess) known = key;
  return error;
}

// The one way to start a kernel, so that the same source runs on a GPU and in the simulator.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
           cudaStream_t stream, Args... args) {
  if (const int error = allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes))
    return error;
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Params>(args)...);
  return cudaGetLastError();
}
#endif

}  // namespace tcgemm
