// C[M, N] = A[M, K] B[K, N] with the instructions below WMMA: ldmatrix and mma.sync.
//
// ADDS           a known place for every element. Shared memory is swizzled instead of padded, so
//                that four stages of a 128 x 256 tile fit; ldmatrix reads rows or, transposed,
//                columns without bank conflicts; fragments are double-buffered in registers, so
//                that the next are on their way while the tensor cores work on these; and C goes
//                from the accumulators straight to memory.
// STILL MISSING  Hopper's own instructions: mma.sync reaches 63 to 65 % of its tensor cores' rate,
//                and every operand passes through registers (wgmma_tma.cu).
//
// grid   one block per BLOCK_M x BLOCK_N tile of C, in groups of GROUP_M tile rows; one to an SM
// block  2 x 4 warps step through K by BLOCK_K over NUM_STAGES x 24 KB
// warp   WARP_M x WARP_N of C: 4 x 8 mma of 16 x 8 x 16; 128 accumulators a thread, and two sets
//        of 32 registers of fragments
#include "copy.cuh"
#include "mma.cuh"
#include "order.cuh"
#include "select.cuh"
#include "store.cuh"

namespace {

using namespace tcgemm;

constexpr int BLOCK_M = 128;
constexpr int BLOCK_N = 256;
constexpr int BLOCK_K = 32;
constexpr int WARP_M = 64;
constexpr int WARP_N = 64;
constexpr int NUM_STAGES = 4;
constexpr int GROUP_M = 8;
constexpr int THREADS = 256;
constexpr int MMA_K = 16;
constexpr int WARPS_N = BLOCK_N / WARP_N;
constexpr int TILES_M = WARP_M / 16;
constexpr int PAIRS_N = WARP_N / 16;  // one ldmatrix brings B for two mma
constexpr int A_BYTES = BLOCK_M * BLOCK_K * 2;
constexpr int STAGE_BYTES = A_BYTES + BLOCK_N * BLOCK_K * 2;
constexpr int SHARED_BYTES = NUM_STAGES * STAGE_BYTES;

// An operand as K along its rows (K_MAJOR: A row-major, B stored transposed) or across them.
struct Operand {
  const void* data;
  int64_t extent;  // of M or N
  int64_t pitch;   // elements from row to row
};

// Bytes from the tile's start to the 16-byte unit that holds (mn, k). K-major rows have 4 units,
// and two rows span the banks: unit u is at u ^ (mn / 2 % 4). Else a row holds 64 of M or N in 8
// units, 32 rows to a panel: unit u is at u ^ (k % 8). Eight rows at one unit then meet all banks.
template <bool K_MAJOR>
__device__ __forceinline__ int unit_at(int mn, int k) {
  if (K_MAJOR) return mn * 64 + ((k / 8) ^ (mn / 2 % 4)) * 16;
  return mn / 64 * (BLOCK_K * 128) + k * 128 + ((mn % 64 / 8) ^ (k % 8)) * 16;
}

__device__ __forceinline__ int valid_bytes(int64_t elements) {
  return elements >= 8 ? 16 : elements <= 0 ? 0 : static_cast<int>(elements) * 2;
}

// A thread's share of an operand's tiles, ROWS of M or N by BLOCK_K each: COUNT units of 16 bytes,
// STEP rows apart. All that changes from tile to tile is added up, not computed again.
template <bool K_MAJOR, int ROWS>
struct Copies {
  static constexpr int UNITS = (K_MAJOR ? BLOCK_K : ROWS) / 8;  // in a row
  static constexpr int STEP = THREADS / UNITS, COUNT = (K_MAJOR ? ROWS : BLOCK_K) / STEP;
  static_assert(STEP % 8 == 0, "a thread's units then swizzle alike");

  const uint16_t* source;
  int64_t row_step, tile_step;  // in elements
  int64_t rows_left, inner_left;  // inside the operand, from this thread's unit on
  int to;

  __device__ Copies(const Operand& from, int64_t mn0, int64_t K) {
    const int row = threadIdx.x / UNITS, unit = threadIdx.x % UNITS * 8;
    source = static_cast<const uint16_t*>(from.data) +
             (K_MAJOR ? (mn0 + row) * from.pitch + unit : row * from.pitch + mn0 + unit);
    row_step = STEP * from.pitch;
    tile_step = K_MAJOR ? BLOCK_K : BLOCK_K * from.pitch;
    rows_left = (K_MAJOR ? from.extent - mn0 : K) - row;
    inner_left = (K_MAJOR ? K : from.extent - mn0) - unit;
    to = K_MAJOR ? unit_at<true>(row, unit) : unit_at<false>(unit, row);
  }

  // Starts the copies of the next tile; zeros outside the operand.
  __device__ __forceinline__ void start(unsigned char* tile) {
    const int bytes = valid_bytes(inner_left);
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
      cp_async_16(tile + to + i * STEP * (K_MAJOR ? 64 : 128), source + i * row_step,
                  i * STEP < rows_left ? bytes : 0);
    source += tile_step;
    (K_MAJOR ? inner_left : rows_left) -= BLOCK_K;
  }
};

template <typename In, typename Out, bool A_T, bool B_T>
__global__ void __launch_bounds__(THREADS, 1)
    mma_multistage_kernel(Operand a, Operand b, PlainOutput c, int64_t K, int tiles_m,
                          int tiles_n) {
  constexpr bool A_K = !A_T, B_K = B_T;
  unsigned char* const shared = dynamic_shared();
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const Tile tile = grouped_tile<GROUP_M>(blockIdx.x, tiles_m, tiles_n);
  const int64_t m0 = static_cast<int64_t>(tile.m) * BLOCK_M;
  const int64_t n0 = static_cast<int64_t>(tile.n) * BLOCK_N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_m = warp / WARPS_N * WARP_M, warp_n = warp % WARPS_N * WARP_N;
  // The corners of this lane's matrix of an ldmatrix: for A along M first, for B along K first.
  const int near = lane / 8 % 2 * 8, far = lane / 16 * 8, line = lane % 8;

  Copies<A_K, BLOCK_M> a_copies(a, m0, K);
  Copies<B_K, BLOCK_N> b_copies(b, n0, K);
  const auto load_stage = [&](int stage) {
    a_copies.start(shared + stage * STAGE_BYTES);
    b_copies.start(shared + stage * STAGE_BYTES + A_BYTES);
  };

  uint32_t a_fragments[2][TILES_M][4], b_fragments[2][PAIRS_N][4];
  const auto load_fragments = [&](int buffer, int stage, int k) {
    const uint32_t a_tile = base + stage * STAGE_BYTES, b_tile = a_tile + A_BYTES;
#pragma unroll
    for (int i = 0; i < TILES_M; ++i) {
      const int m = warp_m + i * 16 + near + (A_K ? line : 0);
      ldmatrix_x4<!A_K>(a_fragments[buffer][i],
                        a_tile + unit_at<A_K>(m, k + far + (A_K ? 0 : line)));
    }
#pragma unroll
    for (int j = 0; j < PAIRS_N; ++j) {
      const int n = warp_n + j * 16 + far + (B_K ? line : 0);
      ldmatrix_x4<!B_K>(b_fragments[buffer][j],
                        b_tile + unit_at<B_K>(n, k + near + (B_K ? 0 : line)));
    }
  };

  float d[TILES_M][8 * PAIRS_N] = {};
  const int64_t k_tiles = (K - 1) / BLOCK_K + 1;
  // Each step commits one group, past K an empty one: NUM_STAGES - 1 are always in flight.
  for (int k_tile = 0; k_tile < NUM_STAGES - 1; ++k_tile) {
    if (k_tile < k_tiles) load_stage(k_tile);
    cp_async_commit();
  }
  cp_async_wait<NUM_STAGES - 2>();
  __syncthreads();
  load_fragments(0, 0, 0);

  int stage = 0;
  for (int64_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
#pragma unroll
    for (int step = 0; step < BLOCK_K / MMA_K; ++step) {
      if (step == 0) {
        load_fragments(1, stage, MMA_K);
      } else {
        cp_async_wait<NUM_STAGES - 2>();
        __syncthreads();
        stage = (stage + 1) % NUM_STAGES;
        load_fragments(0, stage, 0);  // past the last tile: read, never used
      }
#pragma unroll
      for (int i = 0; i < TILES_M; ++i) {
        if (step == 0 && i == 1) {
          // All warps left the stage before this one at the barrier above.
          if (k_tile + NUM_STAGES - 1 < k_tiles) load_stage((stage + NUM_STAGES - 1) % NUM_STAGES);
          cp_async_commit();
        }
#pragma unroll
        for (int j = 0; j < 2 * PAIRS_N; ++j) {
          const uint32_t* pair = b_fragments[step][j / 2];
          mma_m16n8k16<In>(&d[i][4 * j], a_fragments[step][i], pair[j % 2 * 2],
                           pair[j % 2 * 2 + 1]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < TILES_M; ++i)
    store_rows<Out>(c, d[i], static_cast<int>(m0) + warp_m + i * 16, static_cast<int>(n0) + warp_n,
                    static_cast<int>(a.extent), static_cast<int>(b.extent));
}

// The operand where its rows, of K or of M or N, are 16-byte aligned; the stride of a single row or
// of a single element is free.
bool operand(const Matrix& matrix, bool rows_are_k, bool k_major, Operand* result) {
  int64_t extent = matrix.rows, K = matrix.cols, pitch = matrix.row_stride;
  int64_t along_k = matrix.col_stride;
  if (rows_are_k) std::swap(extent, K), std::swap(pitch, along_k);
  if (!k_major) std::swap(pitch, along_k);
  const int64_t rows = k_major ? extent : K, cols = k_major ? K : extent;
  *result = {matrix.data, extent, rows == 1 ? 0 : pitch};
  return aligned_16(matrix.data) && (cols == 1 || along_k == 1) && result->pitch % 8 == 0 &&
         extent <= INT32_MAX - 255;
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const Gemm gemm = with_rows_of_c(asked);
  Operand a, b;
  bool a_k = true, b_k = true;
  if (!operand(gemm.a, false, a_k, &a)) a_k = false;
  if (!operand(gemm.b, true, b_k, &b)) b_k = false;
  if (!operand(gemm.a, false, a_k, &a) || !operand(gemm.b, true, b_k, &b))
    return cudaErrorInvalidValue;
  const int64_t tiles_m = ceil_div(gemm.c.rows, BLOCK_M), tiles_n = ceil_div(gemm.c.cols, BLOCK_N);
  const PlainOutput c = plain_output(gemm.c, gemm.out);
  const auto start = [&](auto kernel) {
    return launch_tiles(kernel, tiles_m, tiles_n, dim3(THREADS), SHARED_BYTES, stream, a, b, c,
                        gemm.a.cols, static_cast<int>(tiles_m), static_cast<int>(tiles_n));
  };
  return with_types(gemm, [&](auto in, auto out) {
    using In = decltype(in);
    using Out = decltype(out);
    if (a_k) return b_k ? start(mma_multistage_kernel<In, Out, false, true>)
                        : start(mma_multistage_kernel<In, Out, false, false>);
    return b_k ? start(mma_multistage_kernel<In, Out, true, true>)
               : start(mma_multistage_kernel<In, Out, true, false>);
  });
}
