// C[M, N] = A[M, K] B[K, N] for M up to 4 (or N, by C^T = B^T A^T), of any strides: on CUDA cores.
//
// ADDS           no tile for mma.sync, of which four rows are an eighth; no shared memory before
//                the sums; no unit of 16 bytes. A lane loads elements wherever they lie, and lanes
//                beside each other take neighbours of B along K, or along N: a warp's load is 64
//                bytes side by side. Few rows are as long as their trips to memory, of which a
//                short K has one or two here.
// STILL MISSING  a lane asks for 2 bytes where rows of 16 bytes allow 16 (gemv.cu). With more than
//                4 rows B is read again for each 4 of them.
//
// grid     clusters of SPLITS blocks, which divide K, for BLOCK_N columns of 4 rows of C each
// block    8 warps, of which WARPS divide K and the others have columns of their own
// warp     lanes along K times lanes along N
// thread   COLS columns of all rows; an FMA for each element of C and k
#include "host/select.cuh"
#include "ptx/sm90.cuh"
#include "sm90/tensor_map.cuh"
#include "tile/epilogue.cuh"
#include "tile/lanes.cuh"
#include "tile/order.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int MOST_ROWS = 4;  // of a block
constexpr int AT_ONCE = 4;  // steps of K whose loads are on their way together

template <typename In>
__device__ __forceinline__ float element(const uint16_t* at, bool there) {
  const uint16_t bits = there ? *at : uint16_t{0};
  return to_float(reinterpret_cast<const In&>(bits));
}

template <int ROWS, bool FUSED, typename In, typename Out>
__global__ void __launch_bounds__(THREADS, 2)
    thin(Side a, Side b, int M, int N, int K, PlainOutput c, Epilogue<float> epilogue,
         Lanes lanes) {
  const Place at = place_of<MOST_ROWS>(lanes);
  const int rank = at.rank, batch = at.batch, m0 = at.m0, n0 = at.n0;
  const int of_k = at.of_k, of_warps = at.of_warps;
  const int log_columns = lanes.log_columns(), columns = 1 << log_columns;
  const int column = at.own + at.of_n;  // the first

  // Every block, warp and lane of those that divide K takes each so many-th k.
  const int log_apart = lanes.log_warps + lanes.log_k(), apart = lanes.splits << log_apart;
  const int first = (rank << log_apart) + (of_warps << lanes.log_k()) + of_k;
  // Beyond M and N the last row and column are read again, and not stored.
  const uint16_t* b_at[COLS];
#pragma unroll
  for (int j = 0; j < COLS; ++j)
    b_at[j] = static_cast<const uint16_t*>(b.data) + batch * b.batch_stride + first * b.k_stride +
              min(n0 + column + (j << lanes.log_n), N - 1) * b.mn_stride;
  const uint16_t* a_at =
      static_cast<const uint16_t*>(a.data) + batch * a.batch_stride + first * a.k_stride;
  int64_t row_at[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) row_at[i] = min(m0 + i, M - 1) * a.mn_stride;
  const int64_t a_step = apart * a.k_stride, b_step = apart * b.k_stride;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();

  float sums[ROWS * COLS] = {};
#pragma unroll 1
  for (int k = first; k < K; k += AT_ONCE * apart) {
    float x[AT_ONCE][ROWS], y[AT_ONCE][COLS];
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u) {
      const bool there = k + u * apart < K;
#pragma unroll
      for (int j = 0; j < COLS; ++j) y[u][j] = element<In>(b_at[j] + u * b_step, there);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) x[u][i] = element<In>(a_at + u * a_step + row_at[i], there);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
      for (int i = 0; i < ROWS * COLS; ++i) sums[i] += x[u][i / COLS] * y[u][i % COLS];
#pragma unroll
    for (int j = 0; j < COLS; ++j) b_at[j] += AT_ONCE * b_step;
    a_at += AT_ONCE * a_step;
  }

  // Lanes, warps and blocks add theirs in one order.
  const int each = ROWS * columns;
  float* const shared = reinterpret_cast<float*>(dynamic_shared());  // [warp of K][row][column]
  float* const of_warp = shared + of_warps * each + column;
  const int nearest = lanes.n_first ? lanes.log_n : 0;
  add_lanes(sums, 1 << nearest, 1 << lanes.log_k(), [&](int value, float sum) {
    of_warp[(value / COLS << log_columns) + (value % COLS << lanes.log_n)] = sum;
  });
  __syncthreads();

  const auto store = [&](int i, float sum) {
    const int m = m0 + (i >> log_columns), n = n0 + (i & (columns - 1));
    if (m < M && n < N)
      static_cast<Out*>(c.data)[batch * c.batch_stride + m * c.row_stride + n * c.col_stride] =
          finished<FUSED, Out>(epilogue, sum, m, n, batch);
  };
  add_warps_and_blocks(shared, each, lanes, rank, store);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const bool taller = asked.c.rows > asked.c.cols;
  const Gemm gemm = taller ? transposed(asked) : asked;
  const int64_t M = gemm.c.rows, N = gemm.c.cols, K = gemm.a.cols;
  if (std::max(N, K) > MOST) return cudaErrorInvalidConfiguration;
  const bool n_first = !column_major(gemm.b);
  const Lanes lanes =
      lanes_of(plan_of(gemm, taller), ceil_div(M, MOST_ROWS), N, K, n_first);
  const int64_t tiles = int64_t{lanes.tiles_m} * lanes.tiles_n * gemm.batch;
  if (tiles > INT32_MAX / MAX_CLUSTER) return cudaErrorInvalidConfiguration;
  const Side a = side_of_a(gemm.a), b = side_of_b(gemm.b);
  return with_types(gemm, [&](auto in, auto out) {
    return with_rows<MOST_ROWS>(M, [&](auto rows) {
      const int shared_bytes = 4 * rows() << (lanes.log_warps + lanes.log_columns());
      const auto start = [&](auto kernel) {
        return launch_clusters(kernel, static_cast<unsigned>(tiles), lanes.splits, dim3(THREADS),
                               shared_bytes, stream, a, b, static_cast<int>(M),
                               static_cast<int>(N), static_cast<int>(K),
                               plain_output(gemm.c, gemm.out), epilogue_of<float>(gemm), lanes);
      };
      return is_plain(gemm) ? start(thin<rows(), false, decltype(in), decltype(out)>)
                            : start(thin<rows(), true, decltype(in), decltype(out)>);
    });
  });
}
