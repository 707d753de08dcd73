// A 16 x 16 tile kernel in float16, small enough to see what each fault changes in it.
#pragma once

#include "host/gemm.cuh"

namespace faults {

constexpr int BLOCK = 16;

__device__ inline int64_t tiles(int64_t extent) { return (extent + BLOCK - 1) / BLOCK; }

__device__ inline __half element(const tcgemm::Matrix& matrix, int64_t row, int64_t col) {
  const __half* data = static_cast<const __half*>(matrix.data);
  return data[row * matrix.row_stride + col * matrix.col_stride];
}

__device__ inline void store(const tcgemm::Matrix& c, int64_t row, int64_t col, float value) {
  static_cast<__half*>(c.data)[row * c.row_stride + col * c.col_stride] = __float2half(value);
}

template <typename... Params>
int launch_tiles(void (*kernel)(Params...), const tcgemm::Gemm& gemm, cudaStream_t stream,
                 dim3 block = dim3(BLOCK, BLOCK)) {
  const dim3 grid(static_cast<unsigned>((gemm.c.cols + BLOCK - 1) / BLOCK),
                  static_cast<unsigned>((gemm.c.rows + BLOCK - 1) / BLOCK));
  return tcgemm::launch(kernel, grid, block, 0, stream, gemm);
}

}  // namespace faults
