// The second kernel of rungs that divide K through a workspace: C from the float32 sums of its parts.
#pragma once

#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"

namespace tcgemm::sm90 {

constexpr int ADD_THREADS = 128;

// C, or with what follows the product, from `parts` matrices `sums` that lie `stride` elements apart,
// added in the order of K. One thread per four elements of C.
template <typename Out>
__global__ void __launch_bounds__(ADD_THREADS)
    add_partials(Rows c, Rows sums, int64_t stride, int parts, Epilogue<float> epilogue,
                 Divisor by_units) {
  griddepcontrol_launch_dependents();
  const int units = (c.cols - 1) / 4 + 1, unit = blockIdx.x * ADD_THREADS + threadIdx.x;
  const int row = by_units.quotient(unit), col = (unit - row * units) * 4;
  griddepcontrol_wait();
  if (row >= c.rows) return;
  const float* from = static_cast<const float*>(sums.data) + row * sums.row_stride + col;
  float x[4] = {};
  for (int start = 0; start < parts; start += 8) {
    float4 more[8];  // on their way at the same time
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (start + i < parts) more[i] = *reinterpret_cast<const float4*>(from + (start + i) * stride);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (start + i < parts)
        x[0] += more[i].x, x[1] += more[i].y, x[2] += more[i].z, x[3] += more[i].w;
  }
  const int inside = c.cols - col < 4 ? c.cols - col : 4;
  finish<true, Out>(epilogue, x, row, col, 0, inside);
  store_four<Out>(c, x, row, col, inside);
}

// Starts it for the C of `gemm`, whose rows are rows of neighbours. A cudaError_t.
inline int launch_add_partials(const Gemm& gemm, const Rows& sums, int64_t stride, int parts,
                            cudaStream_t stream) {
  const Rows c = rows_of(gemm.c, gemm.out);
  const int64_t units = ceil_div(c.cols, 4), blocks = ceil_div(c.rows * units, ADD_THREADS);
  if (blocks > INT32_MAX / ADD_THREADS) return cudaErrorInvalidConfiguration;
  return with_types(gemm, [&](auto, auto out) {
    return launch_clusters(add_partials<decltype(out)>, static_cast<unsigned>(blocks), 1,
                           dim3(ADD_THREADS), 0, stream, c, sums, stride, parts,
                           epilogue_of<float>(gemm), Divisor::of(units));
  });
}

}  // namespace tcgemm::sm90
