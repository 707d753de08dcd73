// C[M, N] = A[M, K] B[K, N]: tiles of A and B in shared memory, four elements of C per thread.
//
// ADDS           reuse. A block copies a tile of A and one of B to shared memory, as float32, and
//                every element copied is used 32 times: 16 FLOP per byte of global memory. Thread
//                coarsening by 2 in each direction: two values of A and two of B, read from shared
//                memory as one 8-byte vector each, feed four multiply-adds; one value each would
//                feed one.
// STILL MISSING  tensor cores: the sums run on the CUDA cores, at 1/15 of the rate. See wmma.cu.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, row after row
// block  16 x 16 threads step through K by BLOCK_K
// thread COARSEN x COARSEN elements of C
#include "tile/convert.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"

namespace {

using namespace tcgemm;

constexpr int COARSEN = 2;
constexpr int BLOCK_M = 32;
constexpr int BLOCK_N = 32;
constexpr int BLOCK_K = 32;
constexpr int THREADS_M = BLOCK_M / COARSEN;
constexpr int THREADS_N = BLOCK_N / COARSEN;
constexpr int THREADS = THREADS_M * THREADS_N;
// Two floats of padding: rows stay 8-byte aligned, and writing down a column meets each bank twice
// instead of 32 times.
constexpr int PAD = 2;

static_assert(BLOCK_M * BLOCK_K % THREADS == 0 && BLOCK_K * BLOCK_N % THREADS == 0);

// Copies the BLOCK_K x WIDTH part of `matrix` at (k0, first) to shared memory, zeros outside it.
// The index that runs fastest over the threads is the one along which elements are neighbours.
template <typename In, int WIDTH>
__device__ void copy_tile(float (*tile)[WIDTH + PAD], const Matrix& matrix, int64_t k0,
                          int64_t first, bool k_fastest) {
  const In* data = static_cast<const In*>(matrix.data);
  const int thread = threadIdx.y * THREADS_N + threadIdx.x;
#pragma unroll
  for (int i = 0; i < BLOCK_K * WIDTH / THREADS; ++i) {
    const int index = thread + i * THREADS;
    const int k = k_fastest ? index % BLOCK_K : index / WIDTH;
    const int j = k_fastest ? index / BLOCK_K : index % WIDTH;
    const bool inside = k0 + k < matrix.rows && first + j < matrix.cols;
    const int64_t offset = (k0 + k) * matrix.row_stride + (first + j) * matrix.col_stride;
    tile[k][j] = inside ? to_float(data[offset]) : 0.0f;
  }
}

// `a_t` is A transposed, [K, M], so that both operands are walked down their rows.
template <typename In, typename Out>
__global__ void __launch_bounds__(THREADS)
    tiled_kernel(Matrix a_t, Matrix b, Matrix c, int tiles_n) {
  __shared__ alignas(16) float a_tile[BLOCK_K][BLOCK_M + PAD];
  __shared__ alignas(16) float b_tile[BLOCK_K][BLOCK_N + PAD];

  const Tile tile = row_major_tile(blockIdx.x, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const int m = threadIdx.y * COARSEN;
  const int n = threadIdx.x * COARSEN;
  const bool a_k_fastest = a_t.row_stride == 1;
  const bool b_k_fastest = b.row_stride == 1 && b.col_stride != 1;

  float sum[COARSEN][COARSEN] = {};
  for (int64_t k0 = 0; k0 < b.rows; k0 += BLOCK_K) {
    copy_tile<In, BLOCK_M>(a_tile, a_t, k0, m0, a_k_fastest);
    copy_tile<In, BLOCK_N>(b_tile, b, k0, n0, b_k_fastest);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BLOCK_K; ++k) {
      const float2 a_pair = *reinterpret_cast<const float2*>(&a_tile[k][m]);
      const float2 b_pair = *reinterpret_cast<const float2*>(&b_tile[k][n]);
      sum[0][0] += a_pair.x * b_pair.x;
      sum[0][1] += a_pair.x * b_pair.y;
      sum[1][0] += a_pair.y * b_pair.x;
      sum[1][1] += a_pair.y * b_pair.y;
    }
    // The tiles are overwritten in the next step: everyone has to be done with them.
    __syncthreads();
  }

  Out* data = static_cast<Out*>(c.data);
#pragma unroll
  for (int i = 0; i < COARSEN; ++i) {
#pragma unroll
    for (int j = 0; j < COARSEN; ++j) {
      const int64_t row = m0 + m + i;
      const int64_t col = n0 + n + j;
      if (row < c.rows && col < c.cols) {
        data[row * c.row_stride + col * c.col_stride] = from_float<Out>(sum[i][j]);
      }
    }
  }
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Matrix& a = gemm.a;
  const Matrix a_t = {a.data, a.cols, a.rows, a.col_stride, a.row_stride};
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  return with_types(gemm, [&](auto in, auto out) {
    return launch_tiles(tiled_kernel<decltype(in), decltype(out)>, tiles_m, tiles_n,
                        dim3(THREADS_N, THREADS_M), 0, stream, a_t, gemm.b, gemm.c,
                        static_cast<int>(tiles_n));
  });
}
