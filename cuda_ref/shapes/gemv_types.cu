// C[M, N] = A[M, K] B[K, N] for M up to 8 (or N, by C^T = B^T A^T), of float32 and float64.
//
// ADDS           vectors of 16 bytes to what thin.cu does on CUDA cores: along K where columns of B
//                and rows of A begin at multiples of 16 bytes, or along N where rows of B do;
//                elsewhere single elements, which are 4 or 8 bytes here. A thread holds 4 x 4
//                elements of B either way, all of them on their way at once, and multiplies them
//                with up to 8 rows of A as fast as memory delivers them. Parts of K end in the same
//                launch, in a cluster.
// STILL MISSING  with more than 8 rows B is read again for each 8 of them (mma_types.cu).
//
// grid     clusters of SPLITS blocks, which divide K, for BLOCK_N columns of 8 rows of C each
// block    8 warps, of which WARPS divide K and the others have columns of their own
// warp     lanes along K times lanes along N
// thread   4 columns of all rows; an FMA for each element of C and k
#include "gemv_types/types.cuh"
#include "host/select.cuh"
#include "sm90/tensor_map.cuh"
#include "tile/epilogue.cuh"
#include "tile/lanes.cuh"
#include "tile/order.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int MOST_ROWS = 8;  // of a block
constexpr int AT_ONCE = 4;  // elements along K of a thread, of each column, on their way together

// How a thread takes a trip: with masks, where not all of it exists; without; and without, and with
// rows of A, where these are neighbours, in vectors.
enum Trip { PART, WHOLE, WHOLE_ROWS };

// ALONG_N and ALONG_K: elements of B of a load, one of both is 1; A has as many along K.
template <typename Real, int ROWS, int ALONG_N, int ALONG_K, bool FUSED>
__global__ void __launch_bounds__(THREADS, BLOCKS<Real, ROWS>)
    gemv_types(Side a, Side b, int M, int N, int K, Matrix c, Epilogue<Real> epilogue,
               Lanes lanes, bool rows_in_vectors) {
  const Place at = place_of<MOST_ROWS>(lanes);
  const int rank = at.rank, batch = at.batch, m0 = at.m0, n0 = at.n0;
  const int of_k = at.of_k, of_warps = at.of_warps;
  const int log_columns = lanes.log_columns(), columns = 1 << log_columns;
  // Columns of a load are neighbours; its loads lie as far apart as its lanes reach.
  const int column = at.own + ALONG_N * at.of_n;
  const auto column_of = [&](int j) {
    return column + (j / ALONG_N * ALONG_N << lanes.log_n) + j % ALONG_N;
  };

  // Every block, warp and lane of those that divide K takes each so many-th load of it.
  const int log_apart = lanes.log_warps + lanes.log_k(), apart = lanes.splits << log_apart;
  const int first = ((rank << log_apart) + (of_warps << lanes.log_k()) + of_k) * ALONG_K;
  // Beyond M, and by elements beyond N, the last row and column are read again, and not stored.
  const Real* b_at[COLS / ALONG_N];
#pragma unroll
  for (int j = 0; j < COLS; j += ALONG_N) {
    const int n = ALONG_N > 1 ? n0 + column_of(j) : min(n0 + column_of(j), N - 1);
    b_at[j / ALONG_N] = static_cast<const Real*>(b.data) + batch * b.batch_stride +
                        first * b.k_stride + n * b.mn_stride;
  }
  const Real* a_at = static_cast<const Real*>(a.data) + batch * a.batch_stride +
                     first * a.k_stride + m0 * a.mn_stride;
  const int64_t a_step = apart * a.k_stride, b_step = apart * b.k_stride;
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();

  constexpr int PASS = ROWS < VECTOR_OF<Real> ? ROWS : VECTOR_OF<Real>;  // rows at once
  Real sums[ROWS * COLS] = {};
  const auto multiply = [&](int k, auto trip) {
    constexpr Trip TRIP = decltype(trip)::value;
    const auto inside = [&](int most, int of) { return TRIP == PART ? min(most, of) : of; };
    Real y[AT_ONCE][COLS];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u += ALONG_K) {
      const int left = K - k - u * apart;  // elements along K, for these and what follows
#pragma unroll
      for (int j = 0; j < COLS; j += ALONG_N) {
        Real unit[ALONG_N * ALONG_K] = {};
        const int most = left < 1 ? 0 : ALONG_N > 1 ? N - n0 - column_of(j) : left;
        load_neighbours(unit, b_at[j / ALONG_N] + u * b_step, 1, true,
                        inside(most, ALONG_N * ALONG_K));
#pragma unroll
        for (int e = 0; e < ALONG_N * ALONG_K; ++e)
          y[ALONG_K > 1 ? u + e : u][ALONG_N > 1 ? j + e : j] = unit[e];
      }
    }
    const Real* row = a_at;
#pragma unroll
    for (int pass = 0; pass < ROWS; pass += PASS) {
      constexpr int ACROSS = TRIP == WHOLE_ROWS ? PASS : 1;
      Real x[PASS][AT_ONCE];
#pragma unroll
      for (int i = 0; i < PASS; i += ACROSS) {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u += ALONG_K) {
          Real unit[ALONG_K * ACROSS] = {};
          load_neighbours(unit, row + u * a_step, 1, true,
                          ACROSS > 1 ? ACROSS : inside(K - k - u * apart, ALONG_K));
#pragma unroll
          for (int e = 0; e < ALONG_K * ACROSS; ++e)
            x[ACROSS > 1 ? i + e : i][ACROSS > 1 ? u : u + e] = unit[e];
        }
        if (ACROSS > 1 || m0 + pass + i + 1 < M) row += ACROSS * a.mn_stride;
      }
#pragma unroll
      for (int i = 0; i < PASS; ++i)
#pragma unroll
        for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
          for (int j = 0; j < COLS; ++j) sums[(pass + i) * COLS + j] += x[i][u] * y[u][j];
    }
  };
  constexpr bool MAY_HAVE_ROWS = ALONG_K == 1 && ROWS % VECTOR_OF<Real> == 0;
  const bool all_columns = ALONG_N == 1 || n0 + column_of(COLS - 1) < N;
  const bool of_rows = MAY_HAVE_ROWS && rows_in_vectors && m0 + ROWS <= M;
#pragma unroll 1
  for (int k = first; k < K; k += AT_ONCE * apart) {
    const bool whole = all_columns && k + (AT_ONCE - ALONG_K) * apart + ALONG_K <= K;
    if (whole && of_rows)
      multiply(k, std::integral_constant<Trip, MAY_HAVE_ROWS ? WHOLE_ROWS : WHOLE>{});
    else if (whole)
      multiply(k, std::integral_constant<Trip, WHOLE>{});
    else
      multiply(k, std::integral_constant<Trip, PART>{});
#pragma unroll
    for (const Real*& at : b_at) at += AT_ONCE * b_step;
    a_at += AT_ONCE * a_step;
  }

  // Lanes, warps and blocks add theirs in one order.
  const int each = ROWS * columns;
  Real* const shared = reinterpret_cast<Real*>(dynamic_shared());  // [warp of K][row][column]
  Real* const of_warp = shared + of_warps * each;
  const int nearest = lanes.n_first ? lanes.log_n : 0;
  add_lanes(sums, 1 << nearest, 1 << lanes.log_k(), [&](int value, Real sum) {
    of_warp[(value / COLS << log_columns) + column_of(value % COLS)] = sum;
  });
  __syncthreads();

  const auto store = [&](int i, Real sum) {
    const int m = m0 + (i >> log_columns), n = n0 + (i & (columns - 1));
    if (m < M && n < N)
      static_cast<Real*>(c.data)[batch * c.batch_stride + m * c.row_stride + n * c.col_stride] =
          finished<FUSED, Real>(epilogue, sum, m, n, batch);
  };
  add_warps_and_blocks(shared, each, lanes, rank, store);
}

template <typename Real, int ALONG_N, int ALONG_K>
int launch_type(const Gemm& gemm, bool taller, cudaStream_t stream) {
  const int64_t M = gemm.c.rows, N = gemm.c.cols, K = gemm.a.cols;
  const bool n_first = ALONG_K == 1 && !column_major(gemm.b);
  const Lanes lanes = lanes_of(plan_of(gemm, taller), ceil_div(M, MOST_ROWS), N,
                               ceil_div(K, ALONG_K), n_first);
  const int64_t tiles = int64_t{lanes.tiles_m} * lanes.tiles_n * gemm.batch;
  if (tiles > INT32_MAX / MAX_CLUSTER) return cudaErrorInvalidConfiguration;
  const Side a = side_of_a(gemm.a), b = side_of_b(gemm.b);
  const bool rows_in_vectors = rows_are_vectors(transposed(gemm).b, gemm.batch, gemm.in);
  return with_rows<MOST_ROWS>(M, [&](auto rows) {
    constexpr int ROWS = decltype(rows)::value;
    const int shared_bytes =
        static_cast<int>(sizeof(Real)) * ROWS << (lanes.log_warps + lanes.log_columns());
    const auto start = [&](auto kernel) {
      return launch_clusters(kernel, static_cast<unsigned>(tiles), lanes.splits, dim3(THREADS),
                             shared_bytes, stream, a, b, static_cast<int>(M), static_cast<int>(N),
                             static_cast<int>(K), gemm.c, epilogue_of<Real>(gemm), lanes,
                             rows_in_vectors);
    };
    return is_plain(gemm) ? start(gemv_types<Real, ROWS, ALONG_N, ALONG_K, false>)
                          : start(gemv_types<Real, ROWS, ALONG_N, ALONG_K, true>);
  });
}

// In vectors along K where columns of B and rows of A begin at multiples of 16 bytes, or along N
// where rows of B do.
template <typename Real>
int launch_vectors(const Gemm& gemm, bool taller, cudaStream_t stream) {
  constexpr int VECTOR = VECTOR_OF<Real>;
  if constexpr (BUILT<Real>) {
    const bool a_along_k = rows_are_vectors(gemm.a, gemm.batch, gemm.in);
    if (gemm.a.cols >= VECTOR && a_along_k &&
        rows_are_vectors(transposed(gemm).a, gemm.batch, gemm.in))
      return launch_type<Real, 1, VECTOR>(gemm, taller, stream);
    if (gemm.c.cols >= VECTOR && rows_are_vectors(gemm.b, gemm.batch, gemm.in))
      return launch_type<Real, VECTOR, 1>(gemm, taller, stream);
    return launch_type<Real, 1, 1>(gemm, taller, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const bool taller = asked.c.rows > asked.c.cols;
  const Gemm gemm = taller ? transposed(asked) : asked;
  if (std::max(gemm.c.cols, gemm.a.cols) > MOST) return cudaErrorInvalidConfiguration;
  return gemm.in == DType::f64 ? launch_vectors<double>(gemm, taller, stream)
                               : launch_vectors<float>(gemm, taller, stream);
}
