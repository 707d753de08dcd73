// C[M, N] = A[M, K] B[K, N], and all that can be fused, for float32 and float64 over a short K.
// Operands may lie anywhere.
//
// ADDS           nothing for the tensor cores. Their steps along K are 32 elements of float32, and
//                a K of 3 takes as long as one of 32. Here a thread
//                multiplies as often as K asks for. A block has all of K of its rows of A and its
//                columns of B in shared memory at once: there is no ring and no step. It loads,
//                waits once, multiplies and stores. C is what takes the time, and a warp stores
//                runs of neighbours, wherever rows begin. Sums are float32's own, in order of K,
//                which is more than tf32 and tf32x3 promise.
// STILL MISSING  a K beyond MOST_K, which is as long as the CUDA cores keep up with the stores.
//
// grid    one block for each tile of C, by rows, of each matrix of a batch
// block   BLOCK_M x BLOCK_N of C; all of K in shared memory
// warp    8 rows x BLOCK_N of C: all lanes read the same row of A, one vector along K at a time
// thread  8 rows x 4 columns, which are 32 apart
#include "sm90/early.cuh"
#include "tile/epilogue.cuh"
#include "tile/order.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 32;
constexpr int BLOCK_N = 128;
constexpr int WARPS = 4;
constexpr int MOST_K = 64;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = BLOCK_M / WARPS;
constexpr int COLS = BLOCK_N / 32;
constexpr int B_PITCH = BLOCK_N + 1;  // by which a column of B lies in different banks

// Elements of A in a vector of shared memory.
template <typename Real>
constexpr int VECTOR = 16 / sizeof(Real);

// Elements from a row of A to the next, a power of two: `K` whole vectors.
template <typename Real>
__host__ __device__ inline int log_pitch(int K) {
  int log = sizeof(Real) == 4 ? 2 : 1;
  while (1 << log < K) ++log;
  return log;
}

template <typename Real, bool FUSED>
__global__ void __launch_bounds__(THREADS)
    short_k(Matrix a, Matrix b, Matrix c, Epilogue<Real> epilogue, int tiles_m, int tiles_n) {
  Real* const a_tile = reinterpret_cast<Real*>(dynamic_shared());
  const int K = static_cast<int>(a.cols), log = log_pitch<Real>(K), pitch = 1 << log;
  Real* const b_tile = a_tile + BLOCK_M * pitch;
  const int of_matrix = tiles_m * tiles_n, batch = blockIdx.x / of_matrix;
  const int tile = blockIdx.x - batch * of_matrix, tile_m = tile / tiles_n;
  const int64_t m0 = int64_t{tile_m} * BLOCK_M;
  const int64_t n0 = int64_t{tile - tile_m * tiles_n} * BLOCK_N;
  const int rows = static_cast<int>(min(c.rows - m0, int64_t{BLOCK_M}));
  const int cols = static_cast<int>(min(c.cols - n0, int64_t{BLOCK_N}));
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
#endif

  // Lanes walk along whichever side has its neighbours in memory. All copies are on their way at
  // once; what is outside is 0.
  const Real* const a_from =
      static_cast<const Real*>(a.data) + batch * a.batch_stride + m0 * a.row_stride;
  const bool a_along = a.col_stride == 1;
  for (int i = threadIdx.x; i < BLOCK_M << log; i += THREADS) {
    const int k = a_along ? i & (pitch - 1) : i / BLOCK_M, m = a_along ? i >> log : i % BLOCK_M;
    cp_async_element<sizeof(Real)>(a_tile + (m << log) + k,
                                   a_from + m * a.row_stride + k * a.col_stride,
                                   m < rows && k < K ? sizeof(Real) : 0);
  }
  const Real* const b_from =
      static_cast<const Real*>(b.data) + batch * b.batch_stride + n0 * b.col_stride;
  const bool b_along = b.row_stride == 1 && b.col_stride != 1;
  for (int i = threadIdx.x; i < BLOCK_N << log; i += THREADS) {
    const int k = b_along ? i & (pitch - 1) : i / BLOCK_N, n = b_along ? i >> log : i % BLOCK_N;
    cp_async_element<sizeof(Real)>(b_tile + k * B_PITCH + n,
                                   b_from + k * b.row_stride + n * b.col_stride,
                                   n < cols && k < K ? sizeof(Real) : 0);
  }
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Real sums[ROWS][COLS] = {};
  for (int k = 0; k < K; k += VECTOR<Real>) {
    union {
      uint4 vector;
      Real elements[VECTOR<Real>];
    } x[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
      x[i].vector =
          *reinterpret_cast<const uint4*>(a_tile + ((warp * ROWS + i) << log) + k);
#pragma unroll
    for (int e = 0; e < VECTOR<Real>; ++e) {
      Real y[COLS];
#pragma unroll
      for (int j = 0; j < COLS; ++j) y[j] = b_tile[(k + e) * B_PITCH + j * 32 + lane];
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
#pragma unroll
        for (int j = 0; j < COLS; ++j) sums[i][j] += x[i].elements[e] * y[j];
    }
  }

  Real* to = static_cast<Real*>(c.data) + batch * c.batch_stride +
             (m0 + warp * ROWS) * c.row_stride + (n0 + lane) * c.col_stride;
#pragma unroll
  for (int i = 0; i < ROWS; ++i, to += c.row_stride) {
    if (warp * ROWS + i >= rows) break;
#pragma unroll
    for (int j = 0; j < COLS; ++j) {
      if (j * 32 + lane >= cols) continue;
      to[j * 32 * c.col_stride] = finished<FUSED, Real>(
          epilogue, sums[i][j], m0 + warp * ROWS + i, n0 + j * 32 + lane, batch);
    }
  }
}

template <typename Real>
int launch_type(const Gemm& gemm, cudaStream_t stream) {
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M), tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const int64_t K = gemm.a.cols;
  if (K > MOST_K || tiles_m * tiles_n > INT32_MAX / gemm.batch)
    return cudaErrorInvalidConfiguration;
  const int log = log_pitch<Real>(static_cast<int>(K));
  const size_t shared = (BLOCK_M + B_PITCH) * sizeof(Real) << log;
  const auto kernel = is_plain(gemm) ? short_k<Real, false> : short_k<Real, true>;
  return start_blocks(kernel, tiles_m * tiles_n * gemm.batch, WARPS, shared, stream, gemm.a, gemm.b,
                      gemm.c, epilogue_of<Real>(gemm), static_cast<int>(tiles_m),
                      static_cast<int>(tiles_n));
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  return gemm.in == DType::f64 ? launch_type<double>(gemm, stream)
                               : launch_type<float>(gemm, stream);
}
