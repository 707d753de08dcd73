// C[M, N] = A[M, K] B[K, N] with the instructions below WMMA: ldmatrix and mma.sync.
//
// ADDS           a known place for every element. Shared memory is swizzled instead of padded: no
//                bank conflicts, no sector fetched twice, and room for steps of 64 along K.
//                ldmatrix reads its rows or, transposed, its columns; from one to the next an
//                address changes by a constant, or by an XOR with one.
// STILL MISSING  Hopper's own instructions: mma.sync reaches two thirds of its tensor cores' rate,
//                every operand passes through registers, and every thread takes part in the copies
//                (wgmma_tma.cu).
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix; one to an SM
// block  2 x 4 warps step through K by BLOCK_K over NUM_STAGES stages
// warp   WARP_M x WARP_N of C: 4 x 8 mma of 16 x 8 x 16. 128 registers of a thread hold
//        accumulators, and two sets of 32 the fragments
#include "host/build_case.cuh"
#include "ptx/mma.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "tile/store_tile.cuh"
#include "tile/swizzled_loader.cuh"

namespace {

using namespace tcgemm;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int BLOCK_K = 64;
constexpr int WARP_M = 64;
constexpr int WARP_N = 64;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 16;
constexpr int NUM_STAGES = 3;
constexpr int GROUP_M = 8;
constexpr int BLOCKS_PER_SM = 1;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int STEPS = BLOCK_K / MMA_K;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int PAIRS_N = WARP_N / (2 * MMA_N);  // one ldmatrix brings B for two mma
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
// The tile of C takes the place of the stages once they are used up. 8 floats more in a row, and
// the 4 rows that half a warp writes meet in no bank.
constexpr int C_LD = BLOCK_N + 8;
constexpr int C_BYTES = BLOCK_M * C_LD * 4;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(STEPS % 2 == 0, "step 0 of every stage is in the same set of fragments");

template <bool FUSED, typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    mma_multistage_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Epilogue<float> epilogue,
                          int64_t K, int tiles_m, int tiles_n) {
  using ATile = SwizzledTile<In, !A_T, BLOCK_M, BLOCK_K>;
  using BTile = SwizzledTile<In, B_T, BLOCK_N, BLOCK_K>;
  using ACopies = StageCopies<ATile, THREADS>;
  using BCopies = StageCopies<BTile, THREADS>;
  unsigned char* const stages = dynamic_shared();

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const int batch = blockIdx.x / (tiles_m * tiles_n);
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const In* a_data = static_cast<const In*>(a.data) + batch * a.batch_stride;
  const In* b_data = static_cast<const In*>(b.data) + batch * b.batch_stride;

  ACopies a_copies(a, a_data, m0);
  BCopies b_copies(b, b_data, n0);
  const bool checked = ACopies::divided(a, m0) || BCopies::divided(b, n0);
  const int k_tiles = checked ? 0 : static_cast<int>(K / BLOCK_K);
  const auto load_stage = [&](unsigned char* to, int k_tile) {
    if (k_tile < k_tiles) {
      a_copies.start(to);
      b_copies.start(to + A_BYTES);
    }
    cp_async_commit();
  };

  uint32_t a_fragments[2][TILES_M][4], b_fragments[2][PAIRS_N][4];
  const LdmatrixRows<ATile, true> a_rows(warp_m);
  const LdmatrixRows<BTile, false> b_rows(warp_n);
  const auto load_fragments = [&](uint32_t stage, int step) {
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
      ldmatrix_x4<A_T>(a_fragments[step % 2][i], a_rows(stage, i, step));
    }
#pragma unroll
    for (int j = 0; j < PAIRS_N; ++j) {
      ldmatrix_x4<!B_T>(b_fragments[step % 2][j], b_rows(stage + A_BYTES, j, step));
    }
  };

  float d[TILES_M][2 * PAIRS_N][4] = {};

  const auto multiply = [&](int step) {
#pragma unroll
    for (int j = 0; j < 2 * PAIRS_N; ++j) {
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
        const uint32_t* pair = &b_fragments[step % 2][j / 2][j % 2 * 2];
        mma_m16n8k16<In>(d[i][j], a_fragments[step % 2][i], pair[0], pair[1]);
      }
    }
  };

  // Prologue. Each step commits one group, past K an empty one, so that NUM_STAGES - 1 groups are
  // always in flight and the oldest is the one to wait for.
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES - 1; ++stage) {
    load_stage(stages + stage * STAGE_BYTES, stage);
  }
  const uint32_t first = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  if (k_tiles > 0) {
    cp_async_wait<NUM_STAGES - 2>();
    __syncthreads();
    load_fragments(first, 0);
  }

  // Where the stage is that is multiplied, or filled.
  int now = 0, free = STAGES_BYTES - STAGE_BYTES;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step + 1 < STEPS) {
        load_fragments(first + now, step + 1);
        if (step == 0) load_stage(stages + free, k_tile + NUM_STAGES - 1);
      } else {
        // After this barrier the next stage is complete, and everyone has left this one, whose last
        // fragments are in registers. After the last tile fragments are read again and not used.
        cp_async_wait<NUM_STAGES - 2>();
        __syncthreads();
        free = now;
        if (k_tile + 1 < k_tiles) now = now == STAGES_BYTES - STAGE_BYTES ? 0 : now + STAGE_BYTES;
        load_fragments(first + now, 0);
      }
      multiply(step);
    }
  }

  // What is left of K is less than a tile, or all of it where copies are checked: one at a time.
#pragma unroll 1
  for (int64_t k0 = static_cast<int64_t>(k_tiles) * BLOCK_K; k0 < K; k0 += BLOCK_K) {
    __syncthreads();
    ACopies::copy_checked(stages, a, a_data, m0, k0);
    BCopies::copy_checked(stages + A_BYTES, b, b_data, n0, k0);
    __syncthreads();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      load_fragments(first, step);
      multiply(step);
    }
  }

  // Epilogue: the stages become one float32 tile of C, of which the inside is stored.
  cp_async_wait<0>();
  __syncthreads();
  float* c_tile = reinterpret_cast<float*>(stages);
  const int row = warp_m + threadIdx.x % 32 / 4, col = warp_n + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < 2 * PAIRS_N; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = &c_tile[(row + i * MMA_M + half * 8) * C_LD + col + j * MMA_N];
        *reinterpret_cast<float2*>(to) = make_float2(d[i][j][2 * half], d[i][j][2 * half + 1]);
      }
    }
  }
  __syncthreads();
  store_tile<FUSED, THREADS, BLOCK_M, BLOCK_N, C_LD, Out>(c_tile, c, c_vectors, epilogue, m0, n0,
                                                          batch);
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  const Operand a = operand(gemm.a, gemm.batch, 2), b = operand(gemm.b, gemm.batch, 2);
  if (!a.vectors || !b.vectors) return cudaErrorInvalidValue;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const auto with = [&](auto kernel) {
    return launch_tiles(kernel, gemm.batch * tiles_m, tiles_n, dim3(THREADS), SHARED_BYTES, stream,
                        a, b, gemm.c, rows_are_vectors(gemm.c, gemm.batch, gemm.out),
                        epilogue_of<float>(gemm), gemm.a.cols, static_cast<int>(tiles_m),
                        static_cast<int>(tiles_n));
  };
  return with_fragment_types(gemm, [&](auto in, auto out) {
    return with_layouts(gemm, [&](auto a_t, auto b_t) {
      using In = decltype(in);
      using Out = decltype(out);
      if constexpr (BUILT<In, true>) {
        if (is_plain(gemm)) {
          return with(mma_multistage_kernel<false, In, Out, a_t.value, b_t.value>);
        }
      }
      if constexpr (BUILT<In, false>) {
        return with(mma_multistage_kernel<true, In, Out, a_t.value, b_t.value>);
      }
      return static_cast<int>(cudaErrorNotSupported);
    });
  });
}
