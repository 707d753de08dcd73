// C = A B of float32 by tf32, and of float64, by mma.sync: the loop over stages of K that mma_types.cu
// and mma_odd.cu have alike. They differ in how a stage is copied and read, which a Ring says:
//
//   A, B            of each side Tile: how it lies in a stage; Copies: a thread's share of the copies
//                   of stages; Fragments: where a lane finds its elements
//   STEP_K          elements along K of a stage
//   STAGE_BYTES, NUM_STAGES, SHARED_BYTES, BLOCKS_PER_SM
//   BLOCK_M, BLOCK_N, GROUP_M, WARPS, WARPS_N    the tile of C, and the warps beside each other in it
//
// The including file is a kernel's: everything here is of its build alone.
#pragma once

#include "ptx/sm90.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "sm90/parts.cuh"
#include "tile/predicated_loader.cuh"
#include "tile/store_tile.cuh"
#include "mma_types/multiply.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int PART = 16;  // rows and columns of sums that a warp multiplies at once

template <Compute COMPUTE>
using RealOf = std::conditional_t<COMPUTE == Compute::f64, double, float>;

// What follows a product: nothing; or, of a part of K, nothing yet. Each part but the last has `K`
// elements along K.
struct Plain {};
struct Part {
  int64_t K;
};

template <typename Ring, Compute COMPUTE, typename Extra>
__global__ void __launch_bounds__(Ring::THREADS, Ring::BLOCKS_PER_SM)
    mma_product(Operand a, Operand b, Matrix c, bool c_vectors, Extra extra, int64_t K, int tiles_m,
                int tiles_n) {
  using Real = RealOf<COMPUTE>;
  using A = typename Ring::A;
  using B = typename Ring::B;
  constexpr int BLOCK_M = Ring::BLOCK_M, BLOCK_N = Ring::BLOCK_N, NUM_STAGES = Ring::NUM_STAGES;
  constexpr int WARPS_N = Ring::WARPS_N, WARP_M = BLOCK_M / (Ring::WARPS / WARPS_N);
  constexpr int WARP_N = BLOCK_N / WARPS_N, PARTS_M = WARP_M / PART, PARTS_N = WARP_N / PART;
  constexpr int STAGE_BYTES = Ring::STAGE_BYTES, A_BYTES = A::Tile::BYTES;
  constexpr int STEP_K = Ring::STEP_K, TERMS = COMPUTE == Compute::tf32x3 ? 2 : 1;
  // Of its steps of 8 along K: as many as a thread has registers for, or nearly. Where A and B lie
  // along K, tf32x3 spills 28 to 32 bytes in tiles of 128 x 64, and 8 to 16 with K in parts.
  constexpr int K_UNROLL = TERMS == 2 && STAGE_BYTES > 10240 ? 2 : STEP_K / 8;
  constexpr int C_LD = BLOCK_N + 16 / sizeof(Real);
  constexpr bool DIVIDED = std::is_same_v<Extra, Part>, PLAIN = std::is_same_v<Extra, Plain>;
  unsigned char* const stages = dynamic_shared();

  const int of_matrix = tiles_m * tiles_n, batch = blockIdx.x / of_matrix;
  const Tile tile = grouped_tile<Ring::GROUP_M>(blockIdx.x - batch * of_matrix, tiles_m, tiles_n);
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
  const typename A::Fragments a_elements(
      warp_m, a, static_cast<const Real*>(a.data) + batch * a.batch_stride, m0, first);
  const typename B::Fragments b_elements(
      warp_n, b, static_cast<const Real*>(b.data) + batch * b.batch_stride, n0, first);
#if TCGEMM_SM >= 90
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
#endif

  Sums<Real> sums[PARTS_M][PARTS_N];
  // All steps along K. Returns whether all of A and B was finite, or careful. What is not finite is
  // rare, so that it is looked for once, at the end.
  const auto accumulate = [&](auto careful) {
    constexpr bool CAREFUL = careful.value;
    typename A::Copies a_copies(
        a, static_cast<const Real*>(a.data) + batch * a.batch_stride, m0, first, K);
    typename B::Copies b_copies(
        b, static_cast<const Real*>(b.data) + batch * b.batch_stride, n0, first, K);
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
  store_tile<!DIVIDED && !PLAIN, Ring::THREADS, BLOCK_M, BLOCK_N, C_LD, Real>(
      c_tile, c, c_vectors, epilogue, m0, n0, batch);
}

template <Compute COMPUTE>
constexpr bool BUILT =
#ifdef TCGEMM_COMPUTE
    COMPUTE == static_cast<Compute>(TCGEMM_COMPUTE);
#else
    true;
#endif

// `stored`: the problem as it is stored, which is `gemm` but for parts of K.
template <template <typename, bool, bool> class RingOf, Compute COMPUTE, typename Extra>
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
  using Any = RingOf<Real, false, false>;
  const int64_t tiles_m = ceil_div(gemm.c.rows, Any::BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, Any::BLOCK_N);
  if (tiles_m * tiles_n > INT32_MAX || ceil_div(gemm.a.cols, 8) > INT32_MAX - 16)
    return cudaErrorInvalidConfiguration;  // tiles, or steps along K, that are counted in 32 bits
  return with_layouts(gemm, [&](auto a_t, auto b_t) {
    using Ring = RingOf<Real, a_t.value, b_t.value>;
    return start_blocks(mma_product<Ring, COMPUTE, Extra>, stored.batch * tiles_m * tiles_n,
                        Ring::WARPS, Ring::SHARED_BYTES, stream, a, b, stored.c,
                        rows_are_vectors(stored.c, stored.batch, stored.out), extra, gemm.a.cols,
                        static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  });
}

template <template <typename, bool, bool> class RingOf, Compute COMPUTE>
int launch_of(const Gemm& gemm, cudaStream_t stream) {
  using Real = RealOf<COMPUTE>;
  constexpr int STEP_K = RingOf<Real, false, false>::STEP_K;
  if constexpr (BUILT<COMPUTE>) {
    if (parts_of(gemm) > 1) {
      if constexpr (BUILT_FOR_PARTS) {
        return launch_parts<Real, Real>(gemm, STEP_K, stream, [&](const Gemm& stored) {
          const Part part{steps_of_part(gemm, STEP_K) * STEP_K};
          return launch_tiles_of<RingOf, COMPUTE>(gemm, stored, part, stream);
        });
      }
    } else if constexpr (BUILT_WHOLE) {
      if (is_plain(gemm)) return launch_tiles_of<RingOf, COMPUTE>(gemm, gemm, Plain{}, stream);
      return launch_tiles_of<RingOf, COMPUTE>(gemm, gemm, epilogue_of<Real>(gemm), stream);
    }
  }
  return cudaErrorNotSupported;
}

// By the operands' type. A plan that names another tile is of another build.
template <template <typename, bool, bool> class RingOf>
int launch_product(const Gemm& gemm, cudaStream_t stream) {
  using Any = RingOf<float, false, false>;
  const Plan plan = plan_of(gemm);
  if (plan.block_m != 0 && (plan.block_m != Any::BLOCK_M || plan.block_n != Any::BLOCK_N))
    return cudaErrorNotSupported;
  switch (gemm.compute) {
    case Compute::tf32: return launch_of<RingOf, Compute::tf32>(gemm, stream);
    case Compute::tf32x3: return launch_of<RingOf, Compute::tf32x3>(gemm, stream);
    default: return launch_of<RingOf, Compute::f64>(gemm, stream);
  }
}

}  // namespace
