// float32 operands as two terms of tf32 each, which a pass writes beforehand: x = hi + lo, as in
// tf32x3.cuh.
//
// Rows of K, hi of the whole batch first and lo behind it: [2, batch, rows, pitch].
#pragma once

#include "host/repack.cuh"
#include "sm90/early.cuh"
#include "tile/order.cuh"
#include "wgmma_types/tf32x3.cuh"

namespace tcgemm::sm90 {

constexpr int TERMS_TILE = 64;                // rows, and columns along K, of a block at a time
constexpr int TERMS_WARPS = 8;
constexpr int TERMS_THREADS = 32 * TERMS_WARPS;
constexpr int TERMS_VECTORS = TERMS_TILE / 4;  // of a row of a tile

struct Terms {
  const uint32_t* from;
  int64_t row_stride, k_stride, batch_stride;  // of `from`
  bool vectors;  // four neighbours along K are one aligned vector
  uint32_t* to;
  int64_t pitch, term;  // elements from row to row, a multiple of 4; and from hi to lo
  int rows, K;
  int64_t tiles;
};

// A thread has four neighbours along K of each sixteenth row. What is not read by such vectors is
// transposed in shared memory, whose pitch of 65 words spreads a column over all banks.
static __global__ void __launch_bounds__(TERMS_THREADS) repack_terms(Terms x) {
  constexpr int AT_ONCE = TERMS_TILE * TERMS_VECTORS / TERMS_THREADS;
  __shared__ uint32_t tile[TERMS_TILE][TERMS_TILE + 1];
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const int tiles_k = (x.K - 1) / TERMS_TILE + 1, tiles_m = (x.rows - 1) / TERMS_TILE + 1;
  const int row = threadIdx.x / TERMS_VECTORS, column = threadIdx.x % TERMS_VECTORS * 4;
  for (int64_t index = blockIdx.x; index < x.tiles; index += gridDim.x) {
    const int64_t z = index / tiles_k / tiles_m;
    const int m = static_cast<int>(index / tiles_k % tiles_m) * TERMS_TILE;
    const int k = static_cast<int>(index % tiles_k) * TERMS_TILE;
    const uint32_t* const source = x.from + z * x.batch_stride;
    uint32_t hi[4 * AT_ONCE], lo[4 * AT_ONCE];
    if (x.vectors) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int r = m + row + i * (TERMS_TILE / AT_ONCE), c = k + column;
        const uint32_t* const at = source + r * x.row_stride + c;
        uint4 four = make_uint4(0, 0, 0, 0);
        if (r < x.rows && c + 4 <= x.K) {
          four = *reinterpret_cast<const uint4*>(at);
        } else if (r < x.rows && c < x.K) {
          four.x = at[0];
          if (c + 1 < x.K) four.y = at[1];
          if (c + 2 < x.K) four.z = at[2];
        }
        hi[4 * i] = four.x, hi[4 * i + 1] = four.y, hi[4 * i + 2] = four.z, hi[4 * i + 3] = four.w;
      }
    } else {
      // Lanes walk along whichever side has its neighbours in memory.
      const bool along_k = x.k_stride == 1;
#pragma unroll
      for (int i = 0; i < 4 * AT_ONCE; ++i) {
        const int lane = threadIdx.x % TERMS_TILE;
        const int other = threadIdx.x / TERMS_TILE + i * (TERMS_THREADS / TERMS_TILE);
        const int r = m + (along_k ? other : lane), c = k + (along_k ? lane : other);
        hi[i] = 0;
        if (r < x.rows && c < x.K) hi[i] = source[r * x.row_stride + c * x.k_stride];
      }
      __syncthreads();  // the tile before has been read
#pragma unroll
      for (int i = 0; i < 4 * AT_ONCE; ++i) {
        const int lane = threadIdx.x % TERMS_TILE;
        const int other = threadIdx.x / TERMS_TILE + i * (TERMS_THREADS / TERMS_TILE);
        tile[along_k ? other : lane][along_k ? lane : other] = hi[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < 4 * AT_ONCE; ++i)
        hi[i] = tile[row + i / 4 * (TERMS_TILE / AT_ONCE)][column + i % 4];
    }
    split<ROUNDED>(hi, lo);
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int r = m + row + i * (TERMS_TILE / AT_ONCE);
      if (r >= x.rows || k + column >= x.K) continue;
      uint32_t* const to = x.to + (z * x.rows + r) * x.pitch + k + column;
      *reinterpret_cast<uint4*>(to) =
          make_uint4(hi[4 * i], hi[4 * i + 1], hi[4 * i + 2], hi[4 * i + 3]);
      *reinterpret_cast<uint4*>(to + x.term) =
          make_uint4(lo[4 * i], lo[4 * i + 1], lo[4 * i + 2], lo[4 * i + 3]);
    }
  }
}

// Writes the two terms of an operand into scratch memory of the stream. *map: of both, in K-major
// panels of `box_rows` rows; lo of matrix z is as many matrices behind hi as the operand has.
// rows_are_k: as B is, [K, N]. A cudaError_t.
inline int terms_map(const Gemm& gemm, const Matrix& matrix, bool rows_are_k,
                     uint32_t box_rows, cudaStream_t stream, CUtensorMap* map) {
  if (gemm.scratch.allocate == nullptr) return cudaErrorNotSupported;
  const int64_t rows = rows_are_k ? matrix.cols : matrix.rows;
  const int64_t K = rows_are_k ? matrix.rows : matrix.cols;
  const int64_t pitch = ceil_div(K, 4) * 4;
  const int64_t copies = matrix.batch_stride == 0 ? 1 : gemm.batch;
  const int64_t row_stride = rows_are_k ? matrix.col_stride : matrix.row_stride;
  const int64_t k_stride = rows_are_k ? matrix.row_stride : matrix.col_stride;
  void* const to = gemm.scratch.allocate(2 * copies * rows * pitch * sizeof(float), stream);
  if (to == nullptr) return cudaErrorMemoryAllocation;
  const bool vectors = k_stride == 1 && row_stride % 4 == 0 && matrix.batch_stride % 4 == 0 &&
                       reinterpret_cast<uint64_t>(matrix.data) % 16 == 0;
  const int64_t tiles = copies * ceil_div(rows, TERMS_TILE) * ceil_div(K, TERMS_TILE);
  const Terms terms{static_cast<const uint32_t*>(matrix.data),
                    row_stride,
                    k_stride,
                    matrix.batch_stride,
                    vectors,
                    static_cast<uint32_t*>(to),
                    pitch,
                    copies * rows * pitch,
                    static_cast<int>(rows),
                    static_cast<int>(K),
                    tiles};
  const int error =
      start_blocks(repack_terms, std::min<int64_t>(tiles, 65536), TERMS_WARPS, 0, stream, terms);
  if (error != cudaSuccess) return error;
  const Matrix both{to, rows, K, pitch, 1, rows * pitch};
  return tensor_map(both, false, gemm.in, 32, box_rows, map, 2 * copies);
}

}  // namespace tcgemm::sm90
