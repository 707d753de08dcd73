// The second kernel of rungs that divide K through a workspace: C from the sums of its parts, which
// are of the accumulators' type.
#pragma once

#include "sm90/early.cuh"
#include "sm90/reduce.cuh"
#include "tile/divisor.cuh"
#include "tile/order.cuh"

namespace tcgemm::sm90 {

constexpr int ADD_THREADS = 128;
constexpr int AT_ONCE = 8;  // parts whose sums are on their way to a thread at the same time
constexpr int MOST_LOG_LANES = 2;
// Neighbours of C that a thread has: 16 bytes of sums.
template <typename Acc>
constexpr int ADD_COUNT = 16 / sizeof(Acc);

// C, or with what follows the product, from `parts` matrices `sums`, `stride` elements apart.
// 2^log_lanes neighbouring threads have the same elements of C: each adds parts one after the
// other, in the order of K, and they add theirs by twos.
template <typename Acc, typename Out>
__global__ void __launch_bounds__(ADD_THREADS)
    add_partials(Rows c, Rows sums, int64_t stride, int parts, int log_lanes,
                 Epilogue<Acc> epilogue, Divisor by_units) {
  constexpr int COUNT = ADD_COUNT<Acc>;
  union Vector {
    uint4 word;
    Acc elements[COUNT];
  };
#if TCGEMM_SM >= 90
  griddepcontrol_launch_dependents();
#endif
  const int index = blockIdx.x * ADD_THREADS + threadIdx.x, lanes = 1 << log_lanes;
  const int units = (c.cols - 1) / COUNT + 1, unit = index >> log_lanes;
  const int lane = index & (lanes - 1);
  const int row = by_units.quotient(unit), col = (unit - row * units) * COUNT;
  const int end = parts * (lane + 1) >> log_lanes;
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
#endif
  const Acc* from = static_cast<const Acc*>(sums.data) + row * sums.row_stride + col;
  Acc x[COUNT] = {};
  for (int start = parts * lane >> log_lanes; start < end && row < c.rows; start += AT_ONCE) {
    Vector more[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (start + i < end)
        more[i].word = *reinterpret_cast<const uint4*>(from + (start + i) * stride);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i)
      if (start + i < end)
#pragma unroll
        for (int e = 0; e < COUNT; ++e) x[e] = multiply_add(Acc(1), more[i].elements[e], x[e]);
  }
  for (int apart = 1; apart < lanes; apart *= 2)
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
      x[e] = multiply_add(Acc(1), __shfl_xor_sync(0xFFFFFFFF, x[e], apart), x[e]);
  if (lane > 0 || row >= c.rows) return;
  const int inside = c.cols - col < COUNT ? c.cols - col : COUNT;
  finish<true, Out>(epilogue, x, row, col, 0, inside);
  store_neighbours<Out>(c, x, row, col, inside);
}

// Room for the sums of `parts` parts of K, `bytes` each: matrices of so many rows and columns, one
// after the other, of which `sums` gets the first. A cudaError_t.
inline int lend_sums(const Gemm& gemm, int64_t rows, int64_t cols, int parts, cudaStream_t stream,
                     Matrix* sums, int64_t bytes = 4) {
  if (gemm.scratch.allocate == nullptr) return cudaErrorNotSupported;
  *sums = {gemm.scratch.allocate(rows * cols * parts * bytes, stream), rows, cols, cols, 1,
           rows * cols};
  return sums->data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Starts it for the C of `gemm`, whose rows are rows of neighbours. A cudaError_t.
template <typename Acc, typename Out>
int launch_add_partials(const Gemm& gemm, const Rows& sums, int64_t stride, int parts,
                        cudaStream_t stream) {
  const Rows c = rows_of(gemm.c, gemm.out);
  const int64_t units = ceil_div(c.cols, ADD_COUNT<Acc>);
  int log_lanes = 0;  // so many that each waits for one trip to the L2
  while (log_lanes < MOST_LOG_LANES && AT_ONCE << log_lanes < parts) ++log_lanes;
  const int64_t blocks = ceil_div(c.rows * units << log_lanes, ADD_THREADS);
  if (blocks > INT32_MAX / ADD_THREADS) return cudaErrorInvalidConfiguration;
  return start_blocks(add_partials<Acc, Out>, blocks, ADD_THREADS / 32, 0, stream, c, sums, stride,
                      parts, log_lanes, epilogue_of<Acc>(gemm), Divisor::of(units));
}

// The same of 16-bit operands. A template, so that rungs of other types compile none of it.
template <typename Acc = float>
int launch_add_partials(const Gemm& gemm, const Rows& sums, int64_t stride, int parts,
                        cudaStream_t stream) {
  return with_types(gemm, [&](auto, auto out) {
    return launch_add_partials<Acc, decltype(out)>(gemm, sums, stride, parts, stream);
  });
}

}  // namespace tcgemm::sm90
