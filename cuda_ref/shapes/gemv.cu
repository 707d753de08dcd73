// C[M, N] = A[M, K] B[K, N] for M up to 8 (or N, by C^T = B^T A^T): warps stream B alone.
//
// ADDS           a ring for each warp. Its lanes ask for 16 bytes each, 256 or 512 that lie beside
//                each other in memory, by cp.async: what is on its way takes no register. The warp
//                alone waits for it, having asked for the next before. A block has work as long as
//                the kernel runs, and the rings go on from one tile to the next; only sums are
//                exchanged, at the end of a tile. With one row and a K-major B not even these: a
//                warp has a column to itself (gemv/columns.cuh). One row by a B in odd rows is
//                multiplied as it is (gemv/odd.cuh).
// STILL MISSING  with more than 8 rows B is read again for each 8 of them (skinny.cu).
//
// grid       clusters for BLOCKS blocks on each SM, or for as many tiles as there are; by columns
//            one block of COLUMN_WARPS warps to an SM
// cluster    SPLITS blocks, each with its part of K, take tiles of COLS columns and 8 rows in turn
// block      WARPS warps, which take stages of that part in turn and add their sums
// warp       COLS columns (16 of a K-major B, else 128) by DEPTH of K (128, or 16) to a stage
// thread     mma 16 x 8 x 16, whose 16 rows are columns of B
#include <algorithm>

#include "tile/epilogue.cuh"
#include "gemv/ring.cuh"
#include "gemv/odd.cuh"
#include "tile/order.cuh"
#include "host/select.cuh"
#include "sm90/tensor_map.cuh"

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = 8;
constexpr int MOST_WARPS = 12, AT_ONCE = 4;  // warps, whose number is a multiple of AT_ONCE
constexpr int MOST_BYTES = 227 * 1024;    // of shared memory for a block, which costs the SM
constexpr int RESERVED = 1024;            // as many more
constexpr int64_t MOST = INT32_MAX - 255;  // rows, columns, and elements along K

// Of a tile: its matrix, its corner, and what of it exists.
struct Place {
  int batch, m, n, rows, columns;
};

struct Schedule {
  int tiles_m, tiles_n, tiles;  // tiles: of all matrices
  int splits;
  int threads;  // of odd rows: of a K-major B, to a column; else lanes to a row

  template <int COLS>
  __device__ Place place(int tile, const Operands& o) const {
    const int n = tile % tiles_n * COLS, above = tile / tiles_n, m = above % tiles_m * BLOCK_M;
    return {above / tiles_m, m, n, min(o.M - m, BLOCK_M), min(o.N - n, COLS)};
  }
};

template <typename Out>
__device__ __forceinline__ void store(const PlainOutput& c, const Epilogue<float>& epilogue,
                                      float sum, int batch, int m, int n) {
  static_cast<Out*>(c.data)[batch * c.batch_stride + m * c.row_stride + n * c.col_stride] =
      finished<true, Out>(epilogue, sum, m, n, batch);
}

// A cluster takes tile after tile; its warps' rings go on from one to the next.
template <typename In, typename Out, bool K_MAJOR>
__device__ __forceinline__ void multiply_tiles(const Operands& o, const PlainOutput& c,
                                               const Epilogue<float>& epilogue,
                                               const Schedule& schedule) {
  using Stage = sm90::Stage<K_MAJOR>;
  constexpr int COLS = Stage::COLS, DEPTH = Stage::DEPTH;
  const int splits = schedule.splits, rank = splits > 1 ? cluster_ctarank() : 0;
  const int clusters = gridDim.x / splits, cluster = blockIdx.x / splits;
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int most_rows = min(o.M, BLOCK_M), stage_bytes = Stage::bytes(most_rows);
  unsigned char* ring = dynamic_shared() + warp * 2 * stage_bytes;
  float* sums = reinterpret_cast<float*>(dynamic_shared() + warps * 2 * stage_bytes);

  // Of a tile's steps of K a block has those from `first` to `last`, a warp every warps-th of them.
  const int steps = (o.K - 1) / DEPTH + 1;
  const int first = steps * rank / splits + warp, last = steps * (rank + 1) / splits;
  Place next = schedule.place<COLS>(cluster, o);
  int next_tile = cluster, next_step = first, next_stage = 0;
  const auto ask = [&] {
    if (next_step >= last) {
      next_step = first, next_tile += clusters;
      if (next_tile < schedule.tiles) next = schedule.place<COLS>(next_tile, o);
    }
    if (next_step < last && next_tile < schedule.tiles) {
      unsigned char* to = ring + next_stage * stage_bytes;
      const int k = next_step * DEPTH;
      Stage::copy_b(to, o.b + next.batch * o.b_batch, o.b_stride, next.n, k, next.columns, o.K - k);
      Stage::copy_a(to, o, o.a + next.batch * o.a_batch + next.m * o.a_stride, next.rows, k);
      next_step += warps, next_stage ^= 1;
    }
    cp_async_commit();
  };

  // Those of a row-major B leave room on some SMs, which the next kernel's blocks would share.
  if (K_MAJOR) griddepcontrol_launch_dependents();
  griddepcontrol_wait();
  ask();
  uint32_t stage = 0;
  for (int tile = cluster; tile < schedule.tiles; tile += clusters) {
    const auto [batch, m, n, rows, columns] = schedule.place<COLS>(tile, o);
    float d[Stage::TILES][4] = {};
    for (int step = first; step < last; step += warps) {
      ask();
      cp_async_wait<1>();
      __syncwarp();
      Stage::template multiply<In>(d, sm90::shared_address(ring) + stage * stage_bytes, rows);
      __syncwarp();  // all have read what the next copies overwrite
      stage ^= 1;
    }

    __syncthreads();  // the sums of the tile before have been read
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, each = rows * COLS;
#pragma unroll
    for (int j = 0; j < Stage::TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (2 * t + i % 2 < rows)
          sums[warp * each + (2 * t + i % 2) * COLS + 16 * j + g + i / 2 * 8] = d[j][i];
    __syncthreads();
    for (int i = threadIdx.x; i < each; i += blockDim.x) {
      float sum = 0;
      for (int w = 0; w < warps; w += AT_ONCE) {
        float of[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; ++j) of[j] = sums[(w + j) * each + i];
        sum += (of[0] + of[1]) + (of[2] + of[3]);
      }
      if (splits > 1)
        sums[i] = sum;
      else if (i % COLS < columns)
        store<Out>(c, epilogue, sum, batch, m + i / COLS, n + i % COLS);
    }
    if (splits > 1) {
      barrier_cluster_arrive();
      barrier_cluster_wait();
      for (int i = rank * blockDim.x + threadIdx.x; i < each; i += splits * blockDim.x) {
        float sum = 0;
#pragma unroll 4
        for (int p = 0; p < splits; ++p)
          sum += ld_shared_cluster(sm90::shared_address(sums + i), p);
        if (i % COLS < columns) store<Out>(c, epilogue, sum, batch, m + i / COLS, n + i % COLS);
      }
      // No block goes on, or exits, while another may still read its sums.
      barrier_cluster_arrive_relaxed();
      barrier_cluster_wait();
    }
  }
}

template <typename In, typename Out, bool K_MAJOR, bool COLUMNS, bool ODD>
__global__ void __launch_bounds__(ODD ? ODD_THREADS : 32 * (COLUMNS ? COLUMN_WARPS : MOST_WARPS),
                                  COLUMNS ? 1 : 2)
    gemv(Operands o, PlainOutput c, Epilogue<float> epilogue, Schedule schedule) {
  const auto store_one = [&](float sum, int n) { store<Out>(c, epilogue, sum, 0, 0, n); };
  if constexpr (ODD && K_MAJOR)
    multiply_odd_columns<In>(o, schedule.threads, store_one);
  else if constexpr (ODD)
    multiply_odd_rows<In>(o, schedule.threads, schedule.splits, store_one);
  else if constexpr (COLUMNS)
    multiply_columns<In>(o, store_one);
  else
    multiply_tiles<In, Out, K_MAJOR>(o, c, epilogue, schedule);
}

// Shared memory: the rings, and the sums of the warps.
template <bool K_MAJOR>
constexpr int block_bytes(int warps, int rows) {
  return warps * (2 * Stage<K_MAJOR>::bytes(rows) + rows * Stage<K_MAJOR>::COLS * 4);
}

static_assert(block_bytes<true>(MOST_WARPS, BLOCK_M) <= MOST_BYTES &&
              block_bytes<false>(MOST_WARPS, BLOCK_M) <= MOST_BYTES &&
              column_bytes(MOST_COLUMN_K) <= MOST_BYTES);

struct Settings {
  int splits, warps, blocks;  // blocks: to an SM
};

// Where tiles are few, clusters that divide K.
Settings settings_of(const Gemm& gemm, int64_t tiles, int sms) {
  const Plan plan = plan_of(gemm);
  if (plan.splits > 0) return {plan.splits, std::min(plan.warps, MOST_WARPS), plan.blocks};
  return {static_cast<int>(std::clamp<int64_t>(2 * sms / tiles, 1, MAX_CLUSTER)), 8, 2};
}

}  // namespace

int tcgemm_launch(const tcgemm::Gemm& asked, cudaStream_t stream) {
  const bool taller = asked.c.rows > asked.c.cols;
  const Gemm gemm = taller ? transposed(asked) : asked;
  if (std::max(gemm.c.cols, gemm.a.cols) > MOST) return cudaErrorInvalidConfiguration;
  // B's neighbours lie along K, or along N.
  const bool k_major = column_major(gemm.b);
  const int64_t b_stride = k_major ? gemm.b.col_stride : gemm.b.row_stride;
  const Matrix& a = gemm.a;
  const Operands o{static_cast<const uint16_t*>(a.data),
                   static_cast<const uint16_t*>(gemm.b.data),
                   a.row_stride,
                   a.col_stride,
                   b_stride,
                   a.batch_stride,
                   gemm.b.batch_stride,
                   a.col_stride == 1 && rows_are_vectors(a, gemm.batch, gemm.in),
                   static_cast<int>(gemm.c.rows),
                   static_cast<int>(gemm.c.cols),
                   static_cast<int>(a.cols)};
  int sms = 0;
  const int error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const int64_t tiles_m = ceil_div(o.M, BLOCK_M);
  const int64_t tiles_n = ceil_div(o.N, k_major ? Stage<true>::COLS : Stage<false>::COLS);
  const int64_t tiles = tiles_m * tiles_n * gemm.batch;
  const int rows = std::min(o.M, BLOCK_M);
  Settings plan = settings_of(gemm, tiles, sms);
  const int bytes = k_major ? block_bytes<true>(plan.warps, rows)
                            : block_bytes<false>(plan.warps, rows);
  plan.blocks = std::min(plan.blocks, (MOST_BYTES + RESERVED) / (bytes + RESERVED));
  const int64_t most = std::max(1, sms * plan.blocks / plan.splits);
  if (tiles > INT32_MAX - most) return cudaErrorInvalidConfiguration;
  const bool odd = o.M == 1 && gemm.batch == 1 && !(aligned_16(o.b) && b_stride % 8 == 0);
  const Odd by_units = odd ? odd_of(o, plan_of(gemm, taller), k_major, 2 * sms) : Odd{};
  if (odd && k_major && o.K > MOST_ODD_K) return cudaErrorInvalidConfiguration;
  if (odd && k_major) plan.splits = 1;
  const Schedule schedule{static_cast<int>(tiles_m), static_cast<int>(tiles_n),
                          static_cast<int>(tiles), plan.splits, by_units.threads};
  return with_types(gemm, [&](auto in, auto out) {
    const auto start = [&](auto kernel, int64_t clusters, int warps, int shared_bytes) {
      return launch_clusters(kernel, static_cast<unsigned>(clusters), plan.splits,
                             dim3(32 * warps), shared_bytes, stream, o,
                             plain_output(gemm.c, gemm.out), epilogue_of<float>(gemm), schedule);
    };
    using In = decltype(in);
    using Out = decltype(out);
    if (odd)
      return start(k_major ? gemv<In, Out, true, false, true> : gemv<In, Out, false, false, true>,
                   by_units.clusters, ODD_WARPS, by_units.bytes);
    if (k_major && o.M == 1 && gemm.batch == 1 && plan.splits == 1 && o.K <= MOST_COLUMN_K)
      return start(gemv<In, Out, true, true, false>, std::min(sms, o.N), COLUMN_WARPS,
                   column_bytes(o.K));
    const int64_t clusters = std::min(tiles, most);
    if (!k_major)
      return start(gemv<In, Out, false, false, false>, clusters, plan.warps, bytes);
    // As much as an SM has for each of its blocks: the next kernel's begin before these have left,
    // and no SM shall have more of them than another.
    const int room = (MOST_BYTES + RESERVED) / plan.blocks / 1024 * 1024 - RESERVED;
    return start(gemv<In, Out, true, false, false>, clusters, plan.warps, std::max(room, bytes));
  });
}
