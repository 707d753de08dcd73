// small.cu where rows are no words of 4 bytes: operands by elements, by way of shared memory.
//
// A warp's load of neighbours along a row is 2 to 16 sectors of the L2; the same elements loaded as
// mma.sync wants them are 8 rows to an instruction, 8 to 16 sectors of 2 bytes each. So the block
// loads rows as they lie, leaves them in shared memory, and ldmatrix hands them to mma.sync,
// transposed where they run along M or N.
//
// A tile of 32 has two stages on their way to registers: a block waits for the stages of a long K
// one after the other. A tile of 64 has a quarter of the instructions for each element of C, where
// an SM has many blocks.
#pragma once

#include "small/sums.cuh"
#include "ptx/opaque.cuh"

namespace tcgemm::sm90 {

constexpr int STAGED_THREADS = 256;

// Elements along K of a stage.
template <int TILE>
constexpr int DEPTH = TILE == 64 ? 32 : 64;

// What a block has of an operand at a time: TILE of M or N by STAGE_DEPTH of K, rows as they lie.
// Each thread loads PASSES elements of a stage, PASS rows apart. Where K is at most half of a
// stage, half of the passes do: of the threads beside each other in a K-major row, half then have a
// row further down.
template <Access ACCESS, int TILE_>
struct Panel {
  static constexpr bool K_MAJOR = ACCESS == Access::K;
  static constexpr int TILE = TILE_, STAGE_DEPTH = DEPTH<TILE_>;
  static constexpr int ROWS = K_MAJOR ? TILE : STAGE_DEPTH, COLS = K_MAJOR ? STAGE_DEPTH : TILE;
  static constexpr int PITCH = COLS + 8;  // elements: ldmatrix reads eight rows from all banks
  static constexpr int SIZE = ROWS * PITCH;
  static constexpr int PASS = STAGED_THREADS / COLS, PASSES = ROWS / PASS;
  static_assert(PASSES % 2 == 0 && PASSES * PASS == ROWS && PASS * COLS == STAGED_THREADS);

  const uint16_t* at;  // this thread's first element of the next stage
  int place, limit;    // where it goes in the panel; rows of the operand from there on
  int k_inside;        // from the beginning of the stage

  // From (mn, k) on. `halved`: K is at most STAGE_DEPTH / 2.
  __device__ __forceinline__ Panel(const Side& from, int mn, int k, bool halved) {
    int x = threadIdx.x % COLS, y = threadIdx.x / COLS;
    if (K_MAJOR && halved) y += x / (COLS / 2) * (ROWS / 2), x %= COLS / 2;
    place = y * PITCH + x;
    k_inside = K_MAJOR ? x : y;
    const int along_mn = K_MAJOR ? y : x;
    limit = K_MAJOR ? from.mn - mn - y : x < from.mn - mn ? from.K - y : 0;
    at = from.data + static_cast<uint32_t>(mn + along_mn) * from.mn_stride +
         static_cast<uint32_t>(k + k_inside) * from.k_stride;
  }

  __device__ __forceinline__ static int64_t pass_stride(const Side& from) {
    return PASS * (K_MAJOR ? from.mn_stride : from.k_stride);
  }

  // Rows from this thread's first one on that lie in the operand: of the stage at `k`.
  __device__ __forceinline__ int inside(const Side& from, int k) const {
    if constexpr (!K_MAJOR) return limit - k;
    return k + k_inside < from.K ? limit : 0;
  }

  // Whether the later half of the passes has nothing of the stage at `k`.
  __device__ __forceinline__ static bool few(const Side& from, int k, bool halved) {
    return K_MAJOR ? halved : from.K - k <= STAGE_DEPTH / 2;
  }

  // Asks for the rows of the first stage to be brought into the L2, each by some threads.
  __device__ __forceinline__ void prefetch(const Side& from, int k) const {
    const int pass = threadIdx.x % COLS / (COLS / PASSES);
    if (pass * PASS < inside(from, k)) prefetch_global_l2(at + pass * pass_stride(from));
  }

  // The stage at `k`, and on to the next; zeros outside of the operand.
  __device__ __forceinline__ void load(uint32_t (&elements)[PASSES], const Side& from, int k,
                                       bool halved) {
    const int rows = inside(from, k);
    int64_t stride = pass_stride(from);
    const uint16_t* line = at;
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      if (i == PASSES / 2 && few(from, k, halved)) break;
      elements[i] = i * PASS < rows ? *line : 0;
      make_opaque(stride);  // or each line is worked out from `at`, by twice the instructions
      line += stride;
    }
    at += STAGE_DEPTH * from.k_stride;
  }

  // Leaves the elements of the stage at `k` in the panel.
  __device__ __forceinline__ void leave(const uint32_t (&elements)[PASSES], uint16_t* panel,
                                        const Side& from, int k, bool halved) const {
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      if (i == PASSES / 2 && few(from, k, halved)) break;
      panel[place + i * PASS * PITCH] = static_cast<uint16_t>(elements[i]);
    }
  }

  // Where a lane's row of eight begins in the panel, of the four matrices of an ldmatrix, from
  // `first` along M or N: 16 x 16 of an operand A of mma.sync; of B 16 columns by 16 along K, or 8
  // by 32.
  __device__ __forceinline__ static int row_of_a(int first, int lane) {
    return K_MAJOR ? (first + lane % 16) * PITCH + lane / 16 * 8
                   : (lane / 16 * 8 + lane % 8) * PITCH + first + lane / 8 % 2 * 8;
  }
  template <int COLUMNS>
  __device__ __forceinline__ static int row_of_b(int first, int lane) {
    const int n = COLUMNS == 16 ? lane / 16 * 8 : 0, k = COLUMNS == 16 ? lane % 16 : lane;
    return K_MAJOR ? (first + n + lane % 8) * PITCH + k / 8 * 8 : k * PITCH + first + n;
  }

  // Elements from a row of a matrix of ldmatrix to the same one further along K, and along M or N.
  __device__ static constexpr int along_k(int k) { return K_MAJOR ? k : k * PITCH; }
  __device__ static constexpr int along_mn(int i) { return K_MAJOR ? i * PITCH : i; }
};

// A barrier; two stages, whose place the sums take; and the parts of a cluster.
template <typename A, typename B>
constexpr int STAGED_BYTES = std::max(2 * (A::SIZE + B::SIZE) * 2, A::TILE * pitch_of(A::TILE) * 4);
template <typename A, typename B>
int staged_bytes(const Parts& k) {
  return BARRIER_BYTES + STAGED_BYTES<A, B> + (k.count > 1 ? parts_bytes<A::TILE>(k) : 0);
}

// C's tile at (m, n) of matrix `batch`; DIVIDED: by the blocks of a cluster, which have the
// parts of K. Bits depend on no timing: parts are added in the order of K.
template <bool FUSED, bool DIVIDED, typename In, typename Out, typename A, typename B>
__device__ __forceinline__ void multiply_staged(const Side& a, const Side& b, const Rows& c,
                                                const Epilogue<float>& epilogue, int m, int n,
                                                int batch, const Parts& k) {
  constexpr int TILE = A::TILE, DEPTH = A::STAGE_DEPTH, STAGE = A::SIZE + B::SIZE;
  constexpr int ON_THEIR_WAY = TILE == 32 ? 2 : 1;              // stages, in registers
  constexpr int WARPS_M = TILE / 16, WARP_N = TILE * WARPS_M / 8;  // of eight warps
  constexpr int COLUMNS = WARP_N < 16 ? 8 : 16, STEP = 256 / COLUMNS;  // of an ldmatrix of B
  uint8_t* const shared = reinterpret_cast<uint8_t*>(dynamic_shared());
  uint16_t* const panels = reinterpret_cast<uint16_t*>(shared + BARRIER_BYTES);
  const int rank = DIVIDED ? cluster_ctarank() : 0;
  const Sums<DIVIDED, TILE> sums(
      reinterpret_cast<float*>(panels),
      reinterpret_cast<float*>(shared + BARRIER_BYTES + STAGED_BYTES<A, B>), shared_address(shared),
      min(c.rows - m, TILE), rank, k);
  if constexpr (DIVIDED) sums.expect();
  const unsigned steps = static_cast<unsigned>(a.K - 1) / DEPTH + 1;
  const Steps<DIVIDED> part(steps, rank, k);
  const bool halved = a.K <= DEPTH / 2;
  A of_a(a, m, part.first * DEPTH, halved);
  B of_b(b, n, part.first * DEPTH, halved);
  if constexpr (TILE == 32) {
    of_a.prefetch(a, part.first * DEPTH);
    of_b.prefetch(b, part.first * DEPTH);
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % WARPS_M * 16, col = warp / WARPS_M * WARP_N;
  const int a_at = A::row_of_a(row, lane);
  const int b_at = A::SIZE + B::template row_of_b<COLUMNS>(col, lane);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();  // not before, or several kernels wait beside each other

  float d[1][WARP_N / 8][4] = {};
  uint32_t a_elements[ON_THEIR_WAY][A::PASSES];
  uint32_t b_elements[ON_THEIR_WAY][B::PASSES];
#pragma unroll 1
  for (int at = part.first - ON_THEIR_WAY; at < part.last; at += ON_THEIR_WAY) {
#pragma unroll
    for (int i = 0; i < ON_THEIR_WAY; ++i) {
      const int step = at + i, k = step * DEPTH, next = k + ON_THEIR_WAY * DEPTH;
      if (step >= part.last) break;
      uint16_t* const panel = panels + (ON_THEIR_WAY == 2 ? i : step & 1) * STAGE;
      if (step >= part.first) {
        of_a.leave(a_elements[i], panel, a, k, halved);
        of_b.leave(b_elements[i], panel + A::SIZE, b, k, halved);
        __syncthreads();  // the stage is complete, and all have read the other
      }
      if (step + ON_THEIR_WAY < part.last) {
        of_a.load(a_elements[i], a, next, halved);
        of_b.load(b_elements[i], b, next, halved);
      }
      if (step < part.first) continue;
      const int depth = min(DEPTH, a.K - k);  // beyond it both are zero
#pragma unroll 1
      for (int j = 0; j < depth; j += STEP) {
        uint32_t y[WARP_N / COLUMNS][4];
#pragma unroll
        for (int u = 0; u < WARP_N / COLUMNS; ++u)
          ldmatrix_x4<!B::K_MAJOR>(
              y[u], shared_address(panel + b_at + B::along_k(j) + B::along_mn(u * COLUMNS)));
#pragma unroll
        for (int s = 0; s < STEP / 16; ++s) {
          uint32_t x[4];
          ldmatrix_x4<!A::K_MAJOR>(x, shared_address(panel + a_at + A::along_k(j + 16 * s)));
#pragma unroll
          for (int u = 0; u < WARP_N / 8; ++u) {
            const int q = 2 * (s + u % (COLUMNS / 8));
            mma_m16n8k16<In>(d[0][u], x, y[u * 8 / COLUMNS][q], y[u * 8 / COLUMNS][q + 1]);
          }
        }
      }
    }
  }

  store_by_sums<STAGED_THREADS, FUSED, Out>(sums, d, row, col, c, epilogue, m, n, batch);
}

}  // namespace tcgemm::sm90
