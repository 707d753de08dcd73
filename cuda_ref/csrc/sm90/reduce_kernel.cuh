// The second kernel of rungs that divide K through a workspace: C from the float32 sums of its parts.
#pragma once

#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"

namespace tcgemm::sm90 {

constexpr int ADD_THREADS = 128;
constexpr int AT_ONCE = 8;  // parts whose sums are on their way to a thread at the same time
constexpr int MOST_LOG_LANES = 2;

// C, or with what follows the product, from `parts` matrices `sums` that lie `stride` elements apart.
// 2^log_lanes neighbouring threads have the same four elements of C: each adds parts one after the
// other, in the order of K, and they add theirs by twos.
template <typename Out>
__global__ void __launch_bounds__(ADD_THREADS)
    add_partials(Rows c, Rows sums, int64_t stride, int parts, int log_lanes,
                 Epilogue<float> epilogue, Divisor by_units) {
  griddepcontrol_launch_dependents();
  const int index = blockIdx.x * ADD_THREADS + threadIdx.x, lanes = 1 << log_lanes;
  const int units = (c.cols - 1) / 4 + 1, unit = index >> log_lanes, lane = index & (lanes - 1);
  const int row = by_units.quotient(unit), col = (unit - row * units) * 4;
  const int end = parts * (lane + 1) >> log_lanes;
  griddepcontrol_wait();
  const float* from = static_cast<const float*>(sums.data) + row * sums.row_stride + col;
  float x[4] = {};
  for (int start = parts * lane >> log_lanes; start < end && row < c.rows; start += AT_ONCE) {
    float4 more[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (start + i < end) more[i] = *reinterpret_cast<const float4*>(from + (start + i) * stride);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (start + i < end)
        x[0] += more[i].x, x[1] += more[i].y, x[2] += more[i].z, x[3] += more[i].w;
  }
  for (int apart = 1; apart < lanes; apart *= 2)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] += __shfl_xor_sync(0xFFFFFFFF, x[e], apart);
  if (lane > 0 || row >= c.rows) return;
  const int inside = c.cols - col < 4 ? c.cols - col : 4;
  finish<true, Out>(epilogue, x, row, col, 0, inside);
  store_four<Out>(c, x, row, col, inside);
}

// Room for the float32 sums of `parts` parts of K: matrices of so many rows and columns, one after the
// other, of which `sums` gets the first. A cudaError_t.
inline int lend_sums(const Gemm& gemm, int64_t rows, int64_t cols, int parts, cudaStream_t stream,
                     Matrix* sums) {
  if (gemm.scratch.allocate == nullptr) return cudaErrorNotSupported;
  *sums = {gemm.scratch.allocate(rows * cols * parts * 4, stream), rows, cols, cols, 1};
  return sums->data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Starts it for the C of `gemm`, whose rows are rows of neighbours. A cudaError_t.
inline int launch_add_partials(const Gemm& gemm, const Rows& sums, int64_t stride, int parts,
                            cudaStream_t stream) {
  const Rows c = rows_of(gemm.c, gemm.out);
  const int64_t units = ceil_div(c.cols, 4);
  int log_lanes = 0;  // so many that each waits for one trip to the L2
  while (log_lanes < MOST_LOG_LANES && AT_ONCE << log_lanes < parts) ++log_lanes;
  const int64_t blocks = ceil_div(c.rows * units << log_lanes, ADD_THREADS);
  if (blocks > INT32_MAX / ADD_THREADS) return cudaErrorInvalidConfiguration;
  return with_types(gemm, [&](auto, auto out) {
    return launch_clusters(add_partials<decltype(out)>, static_cast<unsigned>(blocks), 1,
                           dim3(ADD_THREADS), 0, stream, c, sums, stride, parts,
                           log_lanes, epilogue_of<float>(gemm), Divisor::of(units));
  });
}

}  // namespace tcgemm::sm90
