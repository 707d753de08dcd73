// C[M, N] = A[M, K] B[K, N] in float64 by mma.sync.
//
// ADDS           to wmma_types, which makes an 8 x 8 x 4 instruction of each WMMA tile: 16 x 8 x 8
//                from sm_90 on, 4 times as much work for an instruction; and swizzled stages, so
//                that fragments are loaded without bank conflicts in all layouts. Parts of K, where
//                C has few tiles: each block stores the sums of a part to a workspace, and a second
//                kernel adds them (sm90/parts.cuh).
// STILL MISSING  nothing that the hardware has: wgmma does not multiply float64.
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows, matrix after
//        matrix, or part of K after part; two to an SM: one multiplies while the other waits
// block  2 x 2 warps step through K by BLOCK_K over NUM_STAGES stages
// warp   WARP_M x WARP_N of C: 2 x 8 mma. 128 registers of a thread hold accumulators, 96 the
//        elements of half a stage and of the next: one is loaded while the other is multiplied
#include "ptx/mma.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "sm90/parts.cuh"
#include "tile/store_tile.cuh"
#include "tile/swizzled_loader.cuh"

namespace {

using namespace tcgemm;

constexpr int BLOCK_M = 64;
constexpr int BLOCK_N = 128;
constexpr int BLOCK_K = 16;
constexpr int WARP_M = 32;
constexpr int WARP_N = 64;
constexpr int MMA_M = 16;
constexpr int MMA_N = 8;
constexpr int MMA_K = 8;
constexpr int NUM_STAGES = 3;
constexpr int GROUP_M = 8;
constexpr int BLOCKS_PER_SM = 2;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int THREADS = BLOCK_M / WARP_M * WARPS_N * 32;
constexpr int TILES_M = WARP_M / MMA_M;
constexpr int TILES_N = WARP_N / MMA_N;
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 8;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 8;
constexpr int STAGES_BYTES = NUM_STAGES * STAGE_BYTES;
// The tile of C takes the place of the stages once they are used up. 64 bytes more in a row, and
// the 2 rows that a quarter of a warp writes meet in no bank.
constexpr int C_LD = BLOCK_N + 8;
constexpr int C_BYTES = BLOCK_M * C_LD * 8;
constexpr int SHARED_BYTES = STAGES_BYTES > C_BYTES ? STAGES_BYTES : C_BYTES;

static_assert(BLOCK_K == 2 * MMA_K, "one half of a stage is loaded while the other is multiplied");

// Where a lane finds its elements of an operand, in bytes from the operand's tile. With g = lane /
// 4 and t = lane % 4, element (h, q) of 16 x 16 part i is m or n g + 8 h of the part at k 4 q + t.
template <typename Tile>
struct Elements {
  static constexpr bool K_MAJOR = Tile::K_MAJOR;
  int first;

  __device__ explicit Elements(int warp_mn) {
    const int mn = warp_mn + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    first = K_MAJOR ? Tile::at(mn, t / 2) + t % 2 * 8 : Tile::at(t, mn / 2) + mn % 2 * 8;
    keep_in_register(first);
  }
  // The swizzle is an XOR with units 2 and 4, so that an XOR moves by those.
  __device__ double load(const unsigned char* tile, int i, int h, int q) const {
    const int at = K_MAJOR ? (first ^ (q * 32)) + (16 * i + 8 * h) * Tile::ROW_BYTES
                           : (first ^ (h * 64)) + 4 * q * Tile::ROW_BYTES + i * 128;
    return *reinterpret_cast<const double*>(tile + at);
  }
};

// What the epilogue of a part of K is: none. Each part but the last has `K` elements along K.
struct Part {
  int64_t K;
};

template <bool A_T, bool B_T, typename Extra>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    mma_float64_kernel(Operand a, Operand b, Matrix c, bool c_vectors, Extra epilogue, int64_t K,
                       int tiles_m, int tiles_n) {
  constexpr bool DIVIDED = std::is_same_v<Extra, Part>;
  using ATile = SwizzledTile<double, !A_T, BLOCK_M, BLOCK_K>;
  using BTile = SwizzledTile<double, B_T, BLOCK_N, BLOCK_K>;
  using ACopies = StageCopies<ATile, THREADS, true>;
  using BCopies = StageCopies<BTile, THREADS, true>;
  unsigned char* const stages = dynamic_shared();

  const int warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M;
  const int warp_n = warp % WARPS_N * WARP_N;
  const int batch = blockIdx.x / (tiles_m * tiles_n);
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x % (tiles_m * tiles_n), tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const double* a_data = static_cast<const double*>(a.data) + batch * a.batch_stride;
  const double* b_data = static_cast<const double*>(b.data) + batch * b.batch_stride;

  // Of K this block multiplies what is from `first` up to K.
  int64_t first = 0;
  if constexpr (DIVIDED) {
    first = batch * epilogue.K;
    K = min(K, first + epilogue.K);
  }
  ACopies a_copies(a, a_data + first * (A_T ? a.outer_stride : a.inner_stride), m0);
  BCopies b_copies(b, b_data + first * (B_T ? b.inner_stride : b.outer_stride), n0);
  const bool checked = ACopies::divided(a, m0) || BCopies::divided(b, n0);
  const int k_tiles = checked ? 0 : static_cast<int>((K - first) / BLOCK_K);
  const auto load_stage = [&](unsigned char* to, int k_tile) {
    if (k_tile < k_tiles) {
      a_copies.start(to);
      b_copies.start(to + A_BYTES);
    }
    cp_async_commit();
  };

  const Elements<ATile> a_elements(warp_m);
  const Elements<BTile> b_elements(warp_n);
  double d[TILES_M][TILES_N][4] = {};

  // Of half a stage along K: A's in turns, B's where those before have just been multiplied.
  double as[2][TILES_M][4], bs[TILES_N][2];
  const auto load_a = [&](const unsigned char* stage, int half) {
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        as[half][i][e] = a_elements.load(stage, i, e % 2, 2 * half + e / 2);
    }
  };
  const auto load_b = [&](const unsigned char* stage, int half, int j) {
#pragma unroll
    for (int q = 0; q < 2; ++q)
      bs[j][q] = b_elements.load(stage + A_BYTES, j / 2, j % 2, 2 * half + q);
  };
  const auto load_first = [&](const unsigned char* stage) {
    load_a(stage, 0);
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) load_b(stage, 0, j);
  };
  // Multiplies half `half` while the other one, of `next`, is loaded.
  const auto multiply = [&](int half, const unsigned char* next) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
      if (j == TILES_N / 2) load_a(next, 1 - half);
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) mma_m16n8k8_f64(d[i][j], as[half][i], bs[j]);
      load_b(next, 1 - half, j);
    }
  };

  // Prologue. Each step commits one group, past K an empty one, so that the oldest is always the
  // one to wait for.
#pragma unroll
  for (int stage = 0; stage < NUM_STAGES; ++stage) {
    load_stage(stages + stage * STAGE_BYTES, stage);
  }
  if (k_tiles > 0) {
    cp_async_wait<NUM_STAGES - 1>();
    __syncthreads();
    load_first(stages);
  }

  int now = 0;  // where the stage is that is multiplied
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
    multiply(0, stages + now);
    // After this barrier the next stage is complete, and everyone has left this one, which is in
    // registers. After the last tile elements are read again and not used.
    cp_async_wait<NUM_STAGES - 2>();
    __syncthreads();
    load_stage(stages + now, k_tile + NUM_STAGES);
    if (k_tile + 1 < k_tiles) now = now == STAGES_BYTES - STAGE_BYTES ? 0 : now + STAGE_BYTES;
    multiply(1, stages + now);
  }

  // What is left of K is less than a tile, or all of it where copies are checked: one at a time.
#pragma unroll 1
  for (int64_t k0 = first + static_cast<int64_t>(k_tiles) * BLOCK_K; k0 < K; k0 += BLOCK_K) {
    __syncthreads();
    ACopies::copy_checked(stages, a, a_data, m0, k0);
    BCopies::copy_checked(stages + A_BYTES, b, b_data, n0, k0);
    __syncthreads();
    load_first(stages);
    multiply(0, stages);
    multiply(1, stages);
  }

  // Epilogue: the stages become one tile of sums, of which the inside is stored.
  cp_async_wait<0>();
  __syncthreads();
  double* c_tile = reinterpret_cast<double*>(stages);
  const int row = warp_m + threadIdx.x % 32 / 4, col = warp_n + threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
    for (int j = 0; j < TILES_N; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        double* to = &c_tile[(row + i * MMA_M + half * 8) * C_LD + col + j * MMA_N];
        *reinterpret_cast<double2*>(to) = make_double2(d[i][j][2 * half], d[i][j][2 * half + 1]);
      }
    }
  }
  __syncthreads();
  if constexpr (DIVIDED)
    store_tile<false, THREADS, BLOCK_M, BLOCK_N, C_LD, double>(c_tile, c, c_vectors,
                                                               Epilogue<double>{}, m0, n0, batch);
  else
    store_tile<true, THREADS, BLOCK_M, BLOCK_N, C_LD, double>(c_tile, c, c_vectors, epilogue, m0,
                                                              n0, batch);
}

// `stored`: the problem as it is stored, which is `gemm` but for parts of K.
template <typename Extra>
int launch_tiles_of(const Gemm& gemm, const Gemm& stored, const Extra& extra,
                    cudaStream_t stream) {
  Operand a = operand(gemm.a, gemm.batch, 8), b = operand(gemm.b, gemm.batch, 8);
  if (!a.vectors || !b.vectors) return cudaErrorInvalidValue;
  a.batch_stride = stored.a.batch_stride, b.batch_stride = stored.b.batch_stride;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  return with_layouts(gemm, [&](auto a_t, auto b_t) {
    return launch_tiles(mma_float64_kernel<a_t.value, b_t.value, Extra>, stored.batch * tiles_m,
                        tiles_n, dim3(THREADS), SHARED_BYTES, stream, a, b, stored.c,
                        rows_are_vectors(stored.c, stored.batch, stored.out), extra, gemm.a.cols,
                        static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  });
}

// A template, so that what a build is not for is not compiled.
template <bool FOR_PARTS, bool WHOLE>
int launch_built(const Gemm& gemm, cudaStream_t stream) {
  if (sm90::parts_of(gemm) > 1) {
    if constexpr (FOR_PARTS)
      return sm90::launch_parts<double, double>(gemm, BLOCK_K, stream, [&](const Gemm& stored) {
        const Part part{sm90::steps_of_part(gemm, BLOCK_K) * BLOCK_K};
        return launch_tiles_of(gemm, stored, part, stream);
      });
  } else if constexpr (WHOLE) {
    return launch_tiles_of(gemm, gemm, epilogue_of<double>(gemm), stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  return launch_built<sm90::BUILT_FOR_PARTS, sm90::BUILT_WHOLE>(with_rows_of_c(asked), stream);
}
