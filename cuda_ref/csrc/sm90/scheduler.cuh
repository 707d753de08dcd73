// The schedule of the persistent Hopper rungs: which tiles a block visits, in which order, and how
// many clusters are started.
#pragma once

#include <algorithm>

#include "tile/divisor.cuh"
#include "tile/order.cuh"
#include "sm90/tensor_map.cuh"

namespace tcgemm::sm90 {

// The tiles of a batch of C, BLOCK_M x BLOCK_N for each block. The blocks of a cluster work one above
// the other, or beside each other where they are to share A; clusters walk in groups of GROUP_M tile
// rows, from the last tile to the first. The kernel behind a product mostly reads C from its
// beginning: of a C that the L2 cannot hold, that is what was stored last, and is still there.
template <int BLOCK_M, int BLOCK_N, int GROUP_M, bool SHARES_A = false>
struct Schedule {
  int M, N;
  int cluster;         // blocks in a cluster, 1 or 2
  int batch;           // matrices
  int a_step, b_step;  // 0 where the batch shares the operand, else 1
  int rows, cols;      // of clusters' tiles
  int apart;           // columns from a tile to the next: BLOCK_N, or fewer where they overlap
  int together;        // rows of tiles in a group
  // The first load of a block waits for where its tile is, so nothing is divided on the way there.
  Divisor by_matrix, by_group, by_height, by_last;  // tiles; the rows of a group, and of the last

  // rows, cols: of tiles of one block each.
  static Schedule of(int M, int N, int cluster, int batch, bool a_step, bool b_step, int64_t rows,
                     int64_t cols, int apart) {
    const int64_t high = ceil_div(rows, SHARES_A ? 1 : cluster);
    const int64_t wide = ceil_div(cols, SHARES_A ? cluster : 1);
    const int together = SHARES_A || cluster == 1 ? GROUP_M : GROUP_M / 2;
    return {M, N, cluster, batch, a_step, b_step, static_cast<int>(high), static_cast<int>(wide),
            apart, together, Divisor::of(high * wide),
            Divisor::of(std::min(together * wide, int64_t{1} << 31)), Divisor::of(together),
            Divisor::of((high - 1) % together + 1)};
  }

  __host__ __device__ int tiles() const { return rows * cols * batch; }

  // The corner (m, n) of the tile that block `rank` of a cluster computes of the tile that clusters
  // come to as number `index`, and its matrix z of the batch.
  template <bool BATCHED>
  __device__ void locate(int index, int rank, int* m, int* n, int* z) const {
    index = tiles() - 1 - index;
    *z = BATCHED ? by_matrix.quotient(index) : 0;
    if constexpr (BATCHED) index -= *z * rows * cols;
    // As grouped_tile, by multiplications.
    const int group = by_group.quotient(index), above = group * together;
    const int within = index - above * cols, height = min(rows - above, together);
    const int column = (height < together ? by_last : by_height).quotient(within);
    const int row = above + within - column * height;
    *m = (SHARES_A ? row : row * cluster + rank) * BLOCK_M;
    *n = (SHARES_A ? column * cluster + rank : column) * apart;
  }
};

// The schedule of a problem on the current device, in clusters as its plan says, and how many of
// them to start: as few as finish in the same number of waves, since those beyond would wait at the
// end of the last, and draw power. Neighbours share `overlap` columns. A cudaError_t.
template <int BLOCK_M, int BLOCK_N, int GROUP_M, bool SHARES_A>
int schedule_of(const Gemm& gemm, Schedule<BLOCK_M, BLOCK_N, GROUP_M, SHARES_A>* schedule,
                unsigned* clusters, int overlap = 0) {
  int sms = 0;
  const int error = multiprocessors(&sms);
  if (error != cudaSuccess) return error;
  const int apart = BLOCK_N - overlap;
  const int64_t rows = ceil_div(gemm.c.rows, BLOCK_M);
  const int64_t cols = std::max<int64_t>(1, ceil_div(gemm.c.cols - overlap, apart));
  if (rows * cols > INT32_MAX / 2 / gemm.batch) return cudaErrorInvalidConfiguration;
  const int cluster = std::max(1, plan_of(gemm).cluster);
  if (cluster > std::min(2, MAX_CLUSTER)) return cudaErrorNotSupported;
  *schedule = Schedule<BLOCK_M, BLOCK_N, GROUP_M, SHARES_A>::of(
      static_cast<int>(gemm.c.rows), static_cast<int>(gemm.c.cols), cluster,
      static_cast<int>(gemm.batch), gemm.a.batch_stride != 0, gemm.b.batch_stride != 0, rows, cols,
      apart);
  const int64_t tiles = schedule->tiles();
  *clusters = static_cast<unsigned>(ceil_div(tiles, ceil_div(tiles, sms / cluster)));
  return cudaSuccess;
}

}  // namespace tcgemm::sm90
