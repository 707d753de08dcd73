// small.cu where rows are no words of 8 or 4 bytes, or whole vectors of 16: operands by way of shared
// memory.
//
// A warp's load of neighbours along a row is 2 to 16 sectors of the L2; the same elements loaded as
// mma.sync wants them are 8 rows to an instruction, 8 to 16 sectors of 2 bytes each. So the block
// loads rows as they lie, leaves them in shared memory, and ldmatrix hands them to mma.sync, transposed
// where they run along M or N.
#pragma once

#include "sm90/tile.cuh"
#include "small_fragments.cuh"

namespace tcgemm::sm90 {

constexpr int STAGED_THREADS = 256;  // eight warps, of 16 x 8 of C each
constexpr int TILE = 32;             // rows and columns of C
constexpr int MOST_PARTS = 8;         // of K, one to a block of a cluster
constexpr int SUMS_PITCH = TILE + 8;  // floats: a half warp's pairs meet in no bank

// Elements along K of a stage, of which one is in shared memory and the next on its way.
template <int BYTES>
constexpr int DEPTH = BYTES == 16 ? 128 : 64;

// What a block has of an operand at a time: 32 of M or N by DEPTH of K, rows as they lie.
template <Access ACCESS, int BYTES>
struct Panel {
  static constexpr bool K_MAJOR = ACCESS == Access::K;
  static constexpr int ROWS = K_MAJOR ? TILE : DEPTH<BYTES>, COLS = K_MAJOR ? DEPTH<BYTES> : TILE;
  static constexpr int PITCH = COLS + 8;  // elements: ldmatrix reads eight rows from all banks
  static constexpr int SIZE = ROWS * PITCH;
  static constexpr int WIDTH = BYTES / 2, WORDS = COLS / WIDTH;  // elements in a word, words in a row
  static constexpr int PASS = STAGED_THREADS / WORDS;            // rows that all threads load at once
  static constexpr int PASSES = ROWS / PASS;
  using Word = std::conditional_t<BYTES == 16, uint4, uint16_t>;
  static_assert(ROWS % PASS == 0 && STAGED_THREADS % WORDS == 0);

  Word words[PASSES];

  // From (mn, k) on; zeros outside of the operand.
  __device__ __forceinline__ void load(const Side& from, int mn, int k) {
    const int row = threadIdx.x / WORDS, col = threadIdx.x % WORDS * WIDTH;
    const int64_t row_stride = K_MAJOR ? from.mn_stride : from.k_stride;
    const int64_t col_stride = K_MAJOR ? from.k_stride : from.mn_stride;
    const int rows = (K_MAJOR ? from.mn - mn : from.K - k) - row;
    const int cols = (K_MAJOR ? from.K - k : from.mn - mn) - col;
    const uint16_t* at = from.data + mn * from.mn_stride + k * from.k_stride + row * row_stride +
                         col * col_stride;
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      words[i] = Word{};
      if (cols > 0 && i * PASS < rows) words[i] = *reinterpret_cast<const Word*>(at);
      at += PASS * row_stride;
    }
  }

  __device__ __forceinline__ void leave(uint16_t* panel) const {
    const int row = threadIdx.x / WORDS, col = threadIdx.x % WORDS * WIDTH;
#pragma unroll
    for (int i = 0; i < PASSES; ++i)
      *reinterpret_cast<Word*>(panel + (row + i * PASS) * PITCH + col) = words[i];
  }

  // Where a lane's row of eight begins in the panel of `first` along M or N: for the 16 x 16 that
  // are an operand A of mma.sync, or for 8 columns by 32 along K of B.
  __device__ __forceinline__ static int row_of_a(int first, int lane) {
    return K_MAJOR ? (first + lane % 16) * PITCH + lane / 16 * 8
                   : (lane / 16 * 8 + lane % 8) * PITCH + first + lane / 8 % 2 * 8;
  }
  __device__ __forceinline__ static int row_of_b(int first, int lane) {
    return K_MAJOR ? (first + lane % 8) * PITCH + lane / 8 * 8 : lane * PITCH + first;
  }

  // Elements from a row of a matrix of ldmatrix to the same one `k` further along K.
  __device__ __forceinline__ static constexpr int along_k(int k) { return K_MAJOR ? k : k * PITCH; }

  // Asks for the first rows to be brought into the L2: one to a thread.
  __device__ __forceinline__ static void prefetch(const Side& from, int mn, int k, int row) {
    const int64_t m = K_MAJOR ? mn + row : mn, depth = K_MAJOR ? k : k + row;
    if (row < ROWS && m < from.mn && depth < from.K)
      prefetch_global_l2(from.data + m * from.mn_stride + depth * from.k_stride);
  }
};

// Two stages; the sums take the place of one of them.
template <typename A, typename B>
constexpr int STAGED_BYTES = 2 * (A::SIZE + B::SIZE) * 2;

// C's tile at (m, n) of matrix `batch`, by blocks of a cluster that divide K into `splits` parts. Bits
// depend on no timing: parts are added in the order of K.
template <bool FUSED, typename In, typename Out, typename A, typename B>
__device__ __forceinline__ void multiply_staged(const Side& a, const Side& b, const Rows& c,
                                                const Epilogue<float>& epilogue, int m, int n,
                                                int batch, int splits) {
  constexpr int STEP = A::K_MAJOR ? A::COLS : A::ROWS, STAGE = A::SIZE + B::SIZE;
  static_assert(STAGE * 2 >= TILE * SUMS_PITCH * 4);
  uint16_t* const panels = reinterpret_cast<uint16_t*>(dynamic_shared());
  const int rank = splits > 1 ? cluster_ctarank() : 0;
  const int steps = (a.K - 1) / STEP + 1;
  const int first = steps * rank / splits, last = steps * (rank + 1) / splits;
  if (threadIdx.x < STAGED_THREADS / 2)
    A::prefetch(a, m, first * STEP, threadIdx.x);
  else
    B::prefetch(b, n, first * STEP, threadIdx.x - STAGED_THREADS / 2);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 16, col = warp / 2 * 8;
  const int a_at = A::row_of_a(row, lane), b_at = A::SIZE + B::row_of_b(col, lane);
  float d[4] = {};
  A to_a;
  B to_b;
  to_a.load(a, m, first * STEP);
  to_b.load(b, n, first * STEP);
  int stage = (last - first) % 2;  // the last one is 1, in every block
  for (int step = first; step < last; ++step, stage ^= 1) {
    uint16_t* const panel = panels + stage * STAGE;
    to_a.leave(panel);
    to_b.leave(panel + A::SIZE);
    __syncthreads();  // the stage is complete, and all have read the other
    if (step + 1 < last) {
      to_a.load(a, m, (step + 1) * STEP);
      to_b.load(b, n, (step + 1) * STEP);
    }
    const int depth = min(STEP, a.K - step * STEP);  // beyond it both are zero
#pragma unroll 1
    for (int k = 0; k < depth; k += 32) {
      uint32_t x[2][4], y[4];
      ldmatrix_x4<!B::K_MAJOR>(y, shared_address(panel + b_at + B::along_k(k)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        ldmatrix_x4<!A::K_MAJOR>(x[i], shared_address(panel + a_at + A::along_k(k + 16 * i)));
        mma_m16n8k16<In>(d, x[i], y[2 * i], y[2 * i + 1]);
      }
    }
  }

  float* const sums = reinterpret_cast<float*>(panels);  // in stage 0, which all have read
  float* const own = sums + (row + lane / 4) * SUMS_PITCH + col + lane % 4 * 2;
  own[0] = d[0], own[1] = d[1];
  own[8 * SUMS_PITCH] = d[2], own[8 * SUMS_PITCH + 1] = d[3];
  // Element i of the tile: of a warp's 32 a row.
  const auto store = [&](int i, float sum) {
    const int y = m + i / TILE, x = n + i % TILE;
    if (y < c.rows && x < c.cols)
      static_cast<Out*>(c.data)[y * c.row_stride + x * c.col_stride] =
          finished<FUSED, Out>(epilogue, sum, y, x, batch);
  };
  if (splits == 1) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE * TILE; i += STAGED_THREADS) {
      const int at = i + threadIdx.x;
      store(at, sums[at / TILE * SUMS_PITCH + at % TILE]);
    }
    return;
  }
  barrier_cluster_arrive();
  barrier_cluster_wait();
#pragma unroll 1
  for (int i = rank * STAGED_THREADS + threadIdx.x; i < TILE * TILE; i += splits * STAGED_THREADS) {
    const uint32_t at = shared_address(sums + i / TILE * SUMS_PITCH + i % TILE);
    float parts[MOST_PARTS];  // all asked for before the first is added
#pragma unroll
    for (int p = 0; p < MOST_PARTS; ++p) parts[p] = p < splits ? ld_shared_cluster(at, p) : 0;
    float sum = parts[0];
#pragma unroll
    for (int p = 1; p < MOST_PARTS; ++p) sum += parts[p];
    store(i, sum);
  }
  // No block exits while another may still read its sums.
  barrier_cluster_arrive_relaxed();
  barrier_cluster_wait();
}

}  // namespace tcgemm::sm90
