// What every rung is asked, and the few names through which it reaches the machine.
//
// A rung is one .cu file: plain CUDA, no torch. It ends in
//
//     int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream)
//
// which starts the kernel on `stream` and returns a cudaError_t. The rung's row in
// cuda_ref/__init__.py has already refused every problem that the kernel cannot take.
#pragma once

#include <cstdint>

#ifdef TCGEMM_SIMULATOR
#include "simulator.hpp"  // the same names on a CPU: cuda_ref/simulator/
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>
#endif

namespace tcgemm {

enum class DType : int32_t { f16 = 0, bf16 = 1, f32 = 2 };

// A matrix in global memory. Strides are in elements, of any sign of zero: element (i, j) is at
// data + i * row_stride + j * col_stride. All index arithmetic on it is 64-bit.
struct Matrix {
  void* data;
  int64_t rows, cols;
  int64_t row_stride, col_stride;
};

// C[M, N] = A[M, K] @ B[K, N], accumulated in float32. A and B are `in`, C is `out`.
struct Gemm {
  Matrix a, b, c;
  DType in, out;
};

}  // namespace tcgemm

// Defined by each rung.
int tcgemm_launch(const tcgemm::Gemm& gemm, cudaStream_t stream);

namespace tcgemm {

// The one way to start a kernel, so that the same source runs on a GPU and in the simulator.
// Raises the dynamic shared-memory limit where more than 48 KB are asked for.
#ifdef __CUDACC__
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
           cudaStream_t stream, Args... args) {
  if (shared_bytes > 48 * 1024) {
    cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Params>(args)...);
  return cudaGetLastError();
}
#endif

}  // namespace tcgemm
