// The second kernel of column sums: it adds what blocks of the first have each summed of their rows.
#pragma once

#include "tile/words.cuh"

namespace tcgemm::sm90 {

constexpr int ADD_WARPS = 8;
constexpr int ADD_AT_ONCE = 8;  // partial sums that a thread asks for at the same time

// total[n] = the sum of sums[parts, n]: a block has 32 columns, and its warps take parts in turn.
template <typename Out>
__global__ void __launch_bounds__(32 * ADD_WARPS)
    add_sums(const float* sums, View<Out> total, int64_t N, int64_t parts) {
  __shared__ float of_warps[ADD_WARPS][32];
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other
#endif
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t n = int64_t{blockIdx.x} * 32 + lane;
  float sum = 0.0f;
  for (int64_t p = warp; n < N && p < parts; p += ADD_AT_ONCE * ADD_WARPS) {
    float some[ADD_AT_ONCE];
#pragma unroll
    for (int i = 0; i < ADD_AT_ONCE; ++i)
      some[i] = p + i * ADD_WARPS < parts ? sums[(p + i * ADD_WARPS) * N + n] : 0.0f;
#pragma unroll
    for (int i = 0; i < ADD_AT_ONCE; ++i) sum += some[i];
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || n >= N) return;
  sum = 0.0f;
#pragma unroll
  for (int w = 0; w < ADD_WARPS; ++w) sum += of_warps[w][lane];
  *total.at(0, n) = from_float<Out>(sum);
}

}  // namespace tcgemm::sm90
