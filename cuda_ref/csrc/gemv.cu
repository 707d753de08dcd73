// C[M, N] = A[M, K] B[K, N] for M up to 8 (or N, by C^T = B^T A^T): B goes straight to registers.
//
// ADDS           nothing stands between memory and the tensor cores: no shared memory, no barrier,
//                no tensor map. Which of the sixteen k of an mma is which does not matter as long
//                as A and B agree, so each thread loads 16 bytes along a row and has its fragments
//                (gemv.cuh). The warps of a block divide K, and no block waits for another.
// STILL MISSING  with more than 8 rows B is read again for each 8 of them (skinny.cu).
//
// grid       one cluster per COLS columns and BLOCK_M rows of C, and matrix of the batch
// cluster    1 to MOST_SPLITS blocks, each with its part of K
// block      up to MOST_WARPS warps, which take steps of K in turn and add their sums at the end
// warp       COLS columns by 8 rows; mma 16 x 8 x 16, whose 16 rows are columns of B
#include <algorithm>

#include "epilogue.cuh"
#include "gemv.cuh"
#include "order.cuh"
#include "select.cuh"
#include "tensor_map.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 8;
constexpr int MOST_SPLITS = 8;
constexpr int MOST_WARPS = 16;
template <typename Out>
__device__ __forceinline__ void store(const PlainOutput& c, const Epilogue<float>& epilogue,
                                      float sum, int batch, int m, int n) {
  static_cast<Out*>(c.data)[batch * c.batch_stride + m * c.row_stride + n * c.col_stride] =
      finished<true, Out>(epilogue, sum, m, n, batch);
}

template <typename In, typename Out, bool K_MAJOR>
__global__ void __launch_bounds__(32 * MOST_WARPS)
    gemv(Operands o, PlainOutput c, Epilogue<float> epilogue, int tiles_m, int tiles_n,
         int splits) {
  using Tile = Shape<K_MAJOR>;
  constexpr int COLS = Tile::COLS, AHEAD = Tile::AHEAD;
  __shared__ float sums[MOST_WARPS][BLOCK_M][COLS];
  const int rank = splits > 1 ? cluster_ctarank() : 0;
  const int index = blockIdx.x / splits, n = index % tiles_n * COLS;
  const int m = index / tiles_n % tiles_m * BLOCK_M, batch = index / tiles_n / tiles_m;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  o.a += batch * o.a_batch + m * o.a_stride;
  o.b += batch * o.b_batch;
  o.M = min(o.M - m, BLOCK_M);
  const int columns = min(o.N - n, COLS);

  // Steps warp, warp + warps, ... of this block's are this warp's.
  const int64_t steps = (o.K - 1) / STEP_K + 1;
  const int first = steps * rank / splits, last = steps * (rank + 1) / splits;
  const int whole = o.K / STEP_K < last ? o.K / STEP_K : last;
  float d[Tile::TILES][4] = {};
  Step<K_MAJOR> ahead[AHEAD];
  int next = first + warp * AHEAD;
  for (int i = 0; i < AHEAD; ++i)
    if (next + i < whole) Step<K_MAJOR>::prefetch(o, n, (next + i) * STEP_K, columns);
  griddepcontrol_launch_dependents();
  griddepcontrol_wait();
#pragma unroll
  for (int i = 0; i < AHEAD; ++i)
    if (next + i < whole) ahead[i].load(o, n, (next + i) * STEP_K, true, columns);
  for (int step = next; step < whole; step = next) {
    next = step + warps * AHEAD;
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (step + i < whole) ahead[i].template multiply<In>(d);
      if (next + i < whole) ahead[i].load(o, n, (next + i) * STEP_K, true, columns);
    }
  }
  if (whole < last && warp == 0) {
    ahead[0].load(o, n, whole * STEP_K, false, columns);
    ahead[0].template multiply<In>(d);
  }

  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < Tile::TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = K_MAJOR ? g + i / 2 * 8 : 8 * g + j + i / 2 * 4;
      sums[warp][2 * t + i % 2][column] = d[j][i];
    }
  __syncthreads();
  float* all = &sums[0][0][0];
  for (int i = threadIdx.x; i < o.M * COLS; i += blockDim.x) {
    float sum = all[i];
    for (int w = 1; w < warps; ++w) sum += all[w * BLOCK_M * COLS + i];
    if (splits > 1)
      all[i] = sum;
    else if (i % COLS < columns)
      store<Out>(c, epilogue, sum, batch, m + i / COLS, n + i % COLS);
  }
  if (splits > 1) {
    barrier_cluster_arrive();
    barrier_cluster_wait();
    for (int i = rank * blockDim.x + threadIdx.x; i < o.M * COLS; i += splits * blockDim.x) {
      float sum = 0;
      for (int p = 0; p < splits; ++p) sum += ld_shared_cluster(sm90::shared_address(all + i), p);
      if (i % COLS < columns) store<Out>(c, epilogue, sum, batch, m + i / COLS, n + i % COLS);
    }
    // No block leaves while another may still read its sums.
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait();
  }
}

struct Plan {
  int splits, warps;
};

// Eight warps to a block and several blocks to an SM; where there are few tiles, sixteen warps, and
// clusters that divide K.
Plan plan_of(const Gemm& gemm, int64_t tiles, int sms) {
  if (gemm.config != 0)
    return {std::min(gemm.setting(0), MAX_CLUSTER), std::min(gemm.setting(1), MOST_WARPS)};
  int splits = 1;
  while (tiles * splits * 2 <= sms && splits < std::min(MOST_SPLITS, MAX_CLUSTER)) splits *= 2;
  return {splits, tiles * splits <= 2 * sms ? 16 : 8};
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = asked.c.rows <= asked.c.cols ? asked : transposed(asked);
  // B's neighbours lie along K, or along N.
  const bool k_major = column_major(gemm.b);
  const int64_t b_stride = k_major ? gemm.b.col_stride : gemm.b.row_stride;
  const Matrix& a = gemm.a;
  const Operands o{static_cast<const uint16_t*>(a.data),
                   static_cast<const uint16_t*>(gemm.b.data),
                   a.row_stride,
                   a.col_stride,
                   b_stride,
                   a.batch_stride,
                   gemm.b.batch_stride,
                   a.col_stride == 1 && rows_are_vectors(a, gemm.batch, gemm.in),
                   static_cast<int>(gemm.c.rows),
                   static_cast<int>(gemm.c.cols),
                   static_cast<int>(a.cols)};
  int sms = 0;
  const int error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  return with_types(gemm, [&](auto in, auto out) {
    const auto start = [&](auto k_major) {
      const int64_t tiles_m = ceil_div(o.M, BLOCK_M), tiles_n = ceil_div(o.N, Shape<k_major>::COLS);
      const int64_t tiles = tiles_m * tiles_n * gemm.batch;
      if (tiles > INT32_MAX / MOST_SPLITS) return int{cudaErrorInvalidConfiguration};
      const Plan plan = plan_of(gemm, tiles, sms);
      return launch_clusters(gemv<decltype(in), decltype(out), k_major>,
                             static_cast<unsigned>(tiles), plan.splits, dim3(32 * plan.warps), 0,
                             stream, o, plain_output(gemm.c, gemm.out), epilogue_of<float>(gemm),
                             static_cast<int>(tiles_m), static_cast<int>(tiles_n), plan.splits);
    };
    return k_major ? start(std::true_type{}) : start(std::false_type{});
  });
}
