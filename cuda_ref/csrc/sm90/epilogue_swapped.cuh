// The epilogue of a tile that is computed transposed: wgmma's n, any multiple of 8, counts rows of C
// then, and its m, which is 64, counts columns.
//
// A warpgroup's 64 x ROWS accumulators are ROWS rows of 64 columns of C. They pass through shared
// memory as one chunk of ROWS rows x 128 bytes, in TMA's 128-byte swizzle. Each warp has 16 columns,
// so it writes 32 bytes of every row: who stores the rows reads what all four warps wrote.
#pragma once

#include "sm90/epilogue_tma.cuh"

namespace tcgemm::sm90 {

// The shared memory of a chunk; a box of TMA has at most 256 rows.
template <int ROWS>
constexpr uint32_t SWAPPED_BYTES = ROWS * 128;

// Writes a warpgroup's accumulators transposed to `chunk`: 16-byte unit u of row r is at
// u ^ (r % 8).
template <typename Out, int ROWS>
__device__ __forceinline__ void write_transposed(uint32_t chunk, const float (&d)[ROWS / 2]) {
  static_assert(sizeof(Out) == 2 && ROWS % 16 == 0 && ROWS <= 256, "stmatrix, and a box of TMA");
  const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  // Lanes 8 i .. 8 i + 7 address matrix i: rows 8 (i / 2), columns 8 (i % 2) of 16 x 16 of C.
  const uint32_t row = lane / 16 * 8 + lane % 8, unit = 2 * warp + lane / 8 % 2;
  const uint32_t to = chunk + row * 128 + (unit ^ row % 8) * 16;
#pragma unroll
  for (int j = 0; j < ROWS / 16; ++j) {
    const float* x = d + 8 * j;
    stmatrix_x4_trans(to + j * 16 * 128, pack<Out>(x[0], x[1]), pack<Out>(x[2], x[3]),
                      pack<Out>(x[4], x[5]), pack<Out>(x[6], x[7]));
  }
}

// Stores the accumulators of a warpgroup that stores once, by TMA, whose box is the chunk, or by
// threads. `tile` says where: its m, and M, count columns of C, its n, and N, rows. Its elected
// thread owns the store by TMA, and has to wait for it.
template <typename Out, int ROWS, typename Tile>
__device__ __forceinline__ void store_transposed(const Tile& tile, const CUtensorMap* c_map,
                                                 const Output& plain, const float (&d)[ROWS / 2],
                                                 int M, int N) {
  const uint8_t* chunk = tile.buffers;
  const int row = tile.n, column = tile.m;
  write_transposed<Out, ROWS>(shared_address(chunk), d);
  fence_proxy_async();
  bar_sync(tile.group, 128);  // all four warps have written their part of each row
  if (plain.data == nullptr) {
    if (tile.elected) {
      tma_store_2d(c_map, shared_address(chunk), column, row);
      cp_async_bulk_commit_group();
    }
    __syncwarp();
    return;
  }
  if (!plain.odd) {
    copy_chunk<Out, 64, 2, ROWS>(chunk, plain, row, column, N, M);
    return;
  }
#pragma unroll 1
  for (int first = threadIdx.x % 128 / 32 * 16; first < ROWS; first += 64) {
    const uint8_t* from = chunk + first * 128;
    store_odd_rows<8>(
        static_cast<uint16_t*>(plain.data) + (row + first) * plain.row_stride + column,
        plain.row_stride, N - row - first, min(M - column, 64), true, true, [&](int of, int unit) {
          return *reinterpret_cast<const uint4*>(from + of * 128 + (unit ^ of % 8) * 16);
        });
  }
}

}  // namespace tcgemm::sm90
