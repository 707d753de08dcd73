// The epilogue of a tile of float32 whose C lies by columns: what is a row of the tile is a column of
// what lies by rows in memory, as when C transposed is computed.
//
// A warpgroup's 64 rows are 2 x 32 neighbours in memory, so 64 columns of its accumulators pass through
// shared memory as two chunks of 64 rows of memory x 128 bytes, in TMA's 128-byte swizzle.
#pragma once

#include "sm90/epilogue_chunks.cuh"

namespace tcgemm::sm90 {

// Whether neighbours in a column of C are neighbours in memory. Host and kernel ask the same.
__host__ __device__ inline bool by_columns(const PlainOutput& c) {
  return c.row_stride == 1 && c.col_stride != 1;
}

// As output_map, of a C that may lie by columns too.
inline PlainOutput output_map_either_way(const Matrix& c, DType type, CUtensorMap* map,
                                         int64_t batch) {
  PlainOutput plain = plain_output(c, type);
  if (!by_columns(plain)) return output_map(c, type, CHUNK_ROWS, map, batch);
  const Matrix rows{c.data, c.cols, c.rows, c.col_stride, c.row_stride, c.batch_stride};
  if (output_map(rows, type, CHUNK_ROWS, map, batch).data == nullptr) plain.data = nullptr;
  return plain;
}

// As store_chunks, through two chunks of shared memory at `chunks`: (m, n) is the corner in C, whose
// columns `c_map` has as rows.
template <int REGISTERS>
__device__ __forceinline__ void store_columns(const CUtensorMap* c_map, uint32_t chunks,
                                              uint32_t barrier, const float (&d)[REGISTERS], int m,
                                              int n, int batch) {
  const bool stores = threadIdx.x % 128 == 0;
  const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t unit = warp % 2 * 4 + lane / 16, row = lane % 4 * 2;
  const uint32_t to = chunks + warp / 2 * CHUNK_BYTES + lane / 4 % 4 * 4;
#pragma unroll
  for (int first = 0; first < REGISTERS; first += CHUNK_ROWS / 2) {
    if (stores) cp_async_bulk_wait_group_read<0>();
    bar_sync(barrier, 128);
    // Of a lane's columns 8 j + row and the next; of its rows 16 warp + lane / 4, and 8 below.
#pragma unroll
    for (uint32_t i = 0; i < CHUNK_ROWS / 2; ++i) {
      const uint32_t at = row + i % 2, u = unit + i / 2 % 2 * 2;
      st_shared(to + (i / 4 * 8 + at) * 128 + (u ^ at) * 16, d[first + i]);
    }
    fence_proxy_async();
    bar_sync(barrier, 128);
    if (stores) {
      tma_store_3d(c_map, chunks, m, n + 2 * first, batch);
      tma_store_3d(c_map, chunks + CHUNK_BYTES, m + 32, n + 2 * first, batch);
      cp_async_bulk_commit_group();
    }
  }
}

}  // namespace tcgemm::sm90
