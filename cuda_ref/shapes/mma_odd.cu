// C[M, N] = A[M, K] B[K, N] in float32 by tf32, and in float64, of few rows or columns.
//
// ADDS           units of 16 bytes where mma_types copies rows that begin anywhere element by
//                element: a half or a quarter of the copies. A row is copied from the multiple of
//                16 bytes below its first element on, so that it lies shifted in its stage, and
//                who multiplies adds the shift. Tiles are long and narrow: the side of many rows
//                is read once, and more of its bytes are on their way.
// STILL MISSING  16-bit types, whose fragments ldmatrix loads from multiples of 16 bytes alone.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix, or part of K after part
// block  4 warps step through K by 32, over NUM_STAGES stages; 2 to 4 blocks to an SM
// warp   a quarter of the tile, of 16 x 16 parts: 2 mma each for every 8 along K
#include "ptx/sm90.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "sm90/parts.cuh"
#include "tile/store_tile.cuh"
#include "mma_odd/sides.cuh"
#include "mma_types/multiply.cuh"

#ifndef TCGEMM_BLOCK_M  // of a build that names none
#define TCGEMM_BLOCK_M 64
#define TCGEMM_BLOCK_N 32
#define TCGEMM_NUM_STAGES 4
#endif

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = TCGEMM_BLOCK_M;
constexpr int BLOCK_N = TCGEMM_BLOCK_N;
constexpr int WARPS = 4;
constexpr int GROUP_M = 8;
constexpr int STEP_K = 32;
constexpr bool A_LONG = BLOCK_M > BLOCK_N;  // else B is
constexpr int THREADS = 32 * WARPS;
constexpr int PART = 16;
constexpr int WARPS_N = BLOCK_N >= 4 * BLOCK_M ? WARPS : BLOCK_M >= 4 * BLOCK_N ? 1 : 2;
constexpr int WARP_M = BLOCK_M / (WARPS / WARPS_N);
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int PARTS_M = WARP_M / PART;
constexpr int PARTS_N = WARP_N / PART;
constexpr int NUM_STAGES = TCGEMM_NUM_STAGES;

template <Compute COMPUTE>
using RealOf = std::conditional_t<COMPUTE == Compute::f64, double, float>;

// Both sides, what a block asks for, which is later on a tile of sums, and how many blocks of it an
// SM has room for.
template <typename Real, bool A_T, bool B_T>
struct Ring {
  using A = SideOf<A_LONG, Real, !A_T, true, BLOCK_M, STEP_K, THREADS>;
  using B = SideOf<!A_LONG, Real, B_T, false, BLOCK_N, STEP_K, THREADS>;
  static constexpr int STAGE_BYTES = (A::Tile::BYTES + B::Tile::BYTES + 127) / 128 * 128;
  static constexpr int BYTES = NUM_STAGES * STAGE_BYTES, FIT = SM_BYTES / (BYTES + 1024);
  static constexpr int BLOCKS = FIT < 1 ? 1 : FIT < 4 ? FIT : 4;
  static_assert(BLOCK_M * (BLOCK_N * int{sizeof(Real)} + 16) <= BYTES);
};

// What follows a product: nothing; or, of a part of K, nothing yet. Each part but the last has `K`
// elements along K.
struct Plain {};
struct Part {
  int64_t K;
};

template <Compute COMPUTE, bool A_T, bool B_T, typename Extra>
__global__ void __launch_bounds__(THREADS, Ring<RealOf<COMPUTE>, A_T, B_T>::BLOCKS)
    mma_odd_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Extra extra, int64_t K,
                   int tiles_m, int tiles_n) {
  using Real = RealOf<COMPUTE>;
  using Both = Ring<Real, A_T, B_T>;
  using A = typename Both::A;
  using B = typename Both::B;
  constexpr int STAGE_BYTES = Both::STAGE_BYTES, A_BYTES = A::Tile::BYTES;
  constexpr int TERMS = COMPUTE == Compute::tf32x3 ? 2 : 1;
  // Of its steps of 8 along K: as many as a thread has registers for.
  constexpr int K_UNROLL = TERMS == 2 ? 2 : STEP_K / 8;
  constexpr int C_LD = BLOCK_N + 16 / sizeof(Real);
  constexpr bool DIVIDED = std::is_same_v<Extra, Part>, PLAIN = std::is_same_v<Extra, Plain>;
  unsigned char* const stages = dynamic_shared();

  const int of_matrix = tiles_m * tiles_n, batch = blockIdx.x / of_matrix;
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x - batch * of_matrix, tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
  int64_t first = 0;  // of K this block multiplies what is from here up to K
  if constexpr (DIVIDED) {
    first = batch * extra.K;
    K = min(K, first + extra.K);
  }
  const int steps = static_cast<int>((K - first + STEP_K - 1) / STEP_K);
  const Real* const a_data = static_cast<const Real*>(a.data) + batch * a.batch_stride;
  const Real* const b_data = static_cast<const Real*>(b.data) + batch * b.batch_stride;
  const typename A::Fragments a_elements(warp_m, a, a_data, m0, first);
  const typename B::Fragments b_elements(warp_n, b, b_data, n0, first);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();

  Sums<Real> sums[PARTS_M][PARTS_N];
  // All steps along K. Returns whether all of A and B was finite, or careful. What is not finite is
  // rare, so that it is looked for once, at the end.
  const auto accumulate = [&](auto careful) {
    constexpr bool CAREFUL = careful.value;
    typename A::Copies a_copies(a, a_data, m0, first, K);
    typename B::Copies b_copies(b, b_data, n0, first, K);
    // Each step commits one group, past K an empty one, so that the oldest is the one to wait for.
    const auto load = [&](int step) {
      if (step < steps) {
        unsigned char* const to = stages + step % NUM_STAGES * STAGE_BYTES;
        a_copies.start(to);
        b_copies.start(to + A_BYTES);
      }
      cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < PARTS_M; ++i)
#pragma unroll
      for (int j = 0; j < PARTS_N; ++j) sums[i][j] = {};
#pragma unroll 1
    for (int step = 0; step < NUM_STAGES - 1; ++step) load(step);

    float seen = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      cp_async_wait<NUM_STAGES - 2>();
      __syncthreads();  // this stage is complete, and everyone has left the one before
      load(step + NUM_STAGES - 1);
      const unsigned char* const stage = stages + step % NUM_STAGES * STAGE_BYTES;
#pragma unroll(CAREFUL ? 1 : K_UNROLL)
      for (int k = 0; k < STEP_K / 8; ++k) {
        Elements<Real> as[PARTS_M][TERMS];
        Elements<Real> bs[PARTS_N][TERMS];
#pragma unroll
        for (int i = 0; i < PARTS_M; ++i) {
          a_elements.load(as[i][0].x, stage, i, k);
          seen += to_terms<COMPUTE, CAREFUL, CUT_OFF>(as[i]);
        }
#pragma unroll
        for (int j = 0; j < PARTS_N; ++j) {
          b_elements.load(bs[j][0].x, stage + A_BYTES, j, k);
          seen += to_terms<COMPUTE, CAREFUL, ROUNDED>(bs[j]);
        }
#pragma unroll
        for (int i = 0; i < PARTS_M; ++i)
#pragma unroll
          for (int j = 0; j < PARTS_N; ++j) multiply<COMPUTE>(sums[i][j], as[i], bs[j]);
      }
    }
    cp_async_wait<0>();
    return seen - seen == 0;
  };
  const bool right = accumulate(std::false_type{});
  if constexpr (COMPUTE != Compute::f64) {
    if (__syncthreads_or(!right)) accumulate(std::true_type{});
  }

  // The stages become one tile of sums, of which the inside is stored.
  __syncthreads();
  Real* const c_tile = reinterpret_cast<Real*>(stages);
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < PARTS_M; ++i)
#pragma unroll
    for (int j = 0; j < PARTS_N; ++j)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int row = warp_m + PART * i + A::Fragments::line(e / 2 % 2, g);
        const int col = warp_n + PART * j + B::Fragments::line(e / 4, 2 * t + e % 2);
        c_tile[row * C_LD + col] = sums[i][j].x[e / 4][e % 4];
      }
  __syncthreads();
  Epilogue<Real> epilogue{};
  if constexpr (!DIVIDED && !PLAIN) epilogue = extra;
  store_tile<!DIVIDED && !PLAIN, THREADS, BLOCK_M, BLOCK_N, C_LD, Real>(c_tile, c, c_vectors,
                                                                        epilogue, m0, n0, batch);
}

template <Compute COMPUTE>
constexpr bool BUILT =
#ifdef TCGEMM_COMPUTE
    COMPUTE == static_cast<Compute>(TCGEMM_COMPUTE);
#else
    true;
#endif

// `stored`: the problem as it is stored, which is `gemm` but for parts of K.
template <Compute COMPUTE, typename Extra>
int launch_tiles_of(const Gemm& gemm, const Gemm& stored, const Extra& extra,
                    cudaStream_t stream) {
  using Real = RealOf<COMPUTE>;
  constexpr int SIZE = sizeof(Real);
  Operand a = operand(gemm.a, gemm.batch, SIZE), b = operand(gemm.b, gemm.batch, SIZE);
  a.batch_stride = stored.a.batch_stride, b.batch_stride = stored.b.batch_stride;
  // Beyond the last row nothing is read, but cp.async is given addresses all the same, multiples of
  // 16. The stride of a single row may be anything.
  for (Operand* each : {&a, &b})
    if (each->outer == 1) each->outer_stride = 0;
  if ((A_LONG ? a : b).inner_stride != 1) return cudaErrorNotSupported;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  if (tiles_m * tiles_n > INT32_MAX || ceil_div(gemm.a.cols, 8) > INT32_MAX - 16)
    return cudaErrorInvalidConfiguration;  // tiles, or steps along K, that are counted in 32 bits
  return with_layouts(gemm, [&](auto a_t, auto b_t) {
    return start_blocks(mma_odd_kernel<COMPUTE, a_t.value, b_t.value, Extra>,
                        stored.batch * tiles_m * tiles_n, WARPS,
                        Ring<Real, a_t.value, b_t.value>::BYTES, stream, a, b,
                        stored.c, rows_are_vectors(stored.c, stored.batch, stored.out), extra,
                        gemm.a.cols, static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  });
}

template <Compute COMPUTE>
int launch_of(const Gemm& gemm, cudaStream_t stream) {
  using Real = RealOf<COMPUTE>;
  if constexpr (BUILT<COMPUTE>) {
    if (parts_of(gemm) > 1) {
      if constexpr (BUILT_FOR_PARTS) {
        return launch_parts<Real, Real>(gemm, STEP_K, stream, [&](const Gemm& stored) {
          const Part part{steps_of_part(gemm, STEP_K) * STEP_K};
          return launch_tiles_of<COMPUTE>(gemm, stored, part, stream);
        });
      }
    } else if constexpr (BUILT_WHOLE) {
      if (is_plain(gemm)) return launch_tiles_of<COMPUTE>(gemm, gemm, Plain{}, stream);
      return launch_tiles_of<COMPUTE>(gemm, gemm, epilogue_of<Real>(gemm), stream);
    }
  }
  return cudaErrorNotSupported;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Plan plan = plan_of(gemm);
  if (plan.block_m != 0 && (plan.block_m != BLOCK_M || plan.block_n != BLOCK_N))
    return cudaErrorNotSupported;
  switch (gemm.compute) {
    case Compute::tf32: return launch_of<Compute::tf32>(gemm, stream);
    case Compute::tf32x3: return launch_of<Compute::tf32x3>(gemm, stream);
    default: return launch_of<Compute::f64>(gemm, stream);
  }
}
