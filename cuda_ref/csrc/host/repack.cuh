// Copies of operands that the tensor cores cannot read where they are: K-major, padded to rows of
// whole 16-byte units. Values are moved as they are.
#pragma once

#include "tile/order.cuh"
#include "sm90/tensor_map.cuh"

namespace tcgemm {

constexpr int REPACK_TILE = 32;  // rows, columns and lanes
constexpr int REPACK_WARPS = 8;

// to[z][mn][k] = from[z][mn][k]: tiles of 32 x 32 through shared memory, so that both sides are
// walked along their neighbours, whichever way the operand is stored. Rows are M or N.
template <typename Word>
__global__ void __launch_bounds__(REPACK_TILE * REPACK_WARPS)
    repack_kmajor(const Word* from, int64_t row_stride, int64_t k_stride, int64_t batch_stride,
                Word* to, int64_t pitch, int rows, int K, int64_t tiles) {
  __shared__ Word tile[REPACK_TILE][REPACK_TILE + 1];
  const int lane = threadIdx.x % REPACK_TILE, warp = threadIdx.x / REPACK_TILE;
  const int tiles_k = (K - 1) / REPACK_TILE + 1, tiles_m = (rows - 1) / REPACK_TILE + 1;
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const int64_t z = index / tiles_k / tiles_m;
    const int m = static_cast<int>(index / tiles_k % tiles_m) * REPACK_TILE;
    const int k = static_cast<int>(index % tiles_k) * REPACK_TILE;
    const Word* source = from + z * batch_stride;
    // Lanes walk along whichever side has its neighbours in memory.
    const bool along_k = k_stride == 1;
    __syncthreads();  // the tile before has been read
    for (int i = warp; i < REPACK_TILE; i += REPACK_WARPS) {
      const int r = along_k ? i : lane, c = along_k ? lane : i;
      if (m + r < rows && k + c < K)
        tile[r][c] = source[(m + r) * row_stride + (k + c) * k_stride];
    }
    __syncthreads();
    for (int r = warp; r < REPACK_TILE; r += REPACK_WARPS) {
      if (m + r < rows && k + lane < K)
        to[(z * rows + m + r) * pitch + k + lane] = tile[r][lane];
    }
  }
}

// The same for bytes that are neighbours along M or N, in words of four: tiles of 128 x 128, in which a
// thread transposes 4 x 4 at a time. `from`, k_stride and batch_stride are multiples of 4.
constexpr int REPACK_BYTES = 128;

static __global__ void __launch_bounds__(REPACK_TILE * REPACK_WARPS)
    repack_bytes(const uint8_t* from, int64_t k_stride, int64_t batch_stride, uint8_t* to,
               int64_t pitch, int rows, int K, int64_t tiles) {
  constexpr int WORDS = REPACK_BYTES / 4;
  __shared__ uint32_t tile[REPACK_BYTES][WORDS + 1];
  const int lane = threadIdx.x % REPACK_TILE, warp = threadIdx.x / REPACK_TILE;
  const int tiles_k = (K - 1) / REPACK_BYTES + 1, tiles_m = (rows - 1) / REPACK_BYTES + 1;
  for (int64_t index = blockIdx.x; index < tiles; index += gridDim.x) {
    const int64_t z = index / tiles_k / tiles_m;
    const int m0 = static_cast<int>(index / tiles_k % tiles_m) * REPACK_BYTES;
    const int k0 = static_cast<int>(index % tiles_k) * REPACK_BYTES;
    const int m = m0 + 4 * lane;
    uint32_t x[WORDS / REPACK_WARPS][4];
#pragma unroll
    for (int i = 0; i < WORDS / REPACK_WARPS; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int k = k0 + 4 * (warp + i * REPACK_WARPS) + j;
        const uint8_t* source = from + z * batch_stride + k * k_stride + m;
        x[i][j] = 0;
        if (k < K && m + 4 <= rows)
          x[i][j] = *reinterpret_cast<const uint32_t*>(source);
        else
          for (int r = 0; k < K && m + r < rows; ++r)
            x[i][j] |= static_cast<uint32_t>(source[r]) << 8 * r;
      }
    }
    __syncthreads();  // the tile before has been read
#pragma unroll
    for (int i = 0; i < WORDS / REPACK_WARPS; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        uint32_t word = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) word |= (x[i][j] >> 8 * r & 255) << 8 * j;
        tile[4 * lane + r][warp + i * REPACK_WARPS] = word;
      }
    }
    __syncthreads();
    for (int r = warp; r < REPACK_BYTES && m0 + r < rows; r += REPACK_WARPS) {
      if (k0 + 4 * lane < K)
        *reinterpret_cast<uint32_t*>(to + (z * rows + m0 + r) * pitch + k0 + 4 * lane) =
            tile[r][lane];
    }
  }
}

// Repacks an operand of elements of type Word into scratch memory of the stream, and points `matrix` at
// the copy. rows_are_k: as B is, [K, N]. A cudaError_t.
template <typename Word>
int repack_operand(Matrix& matrix, bool rows_are_k, int64_t batch, const Scratch& scratch,
                 cudaStream_t stream) {
  const int64_t rows = rows_are_k ? matrix.cols : matrix.rows;
  const int64_t K = rows_are_k ? matrix.rows : matrix.cols;
  const int64_t unit = 16 / static_cast<int64_t>(sizeof(Word)), pitch = ceil_div(K, unit) * unit;
  const int64_t copies = matrix.batch_stride == 0 ? 1 : batch;
  if (scratch.allocate == nullptr) return cudaErrorNotSupported;
  Word* to = static_cast<Word*>(scratch.allocate(copies * rows * pitch * sizeof(Word), stream));
  if (to == nullptr) return cudaErrorMemoryAllocation;
  const int64_t row_stride = rows_are_k ? matrix.col_stride : matrix.row_stride;
  const int64_t k_stride = rows_are_k ? matrix.row_stride : matrix.col_stride;
  const bool words = sizeof(Word) == 1 && row_stride == 1 && k_stride % 4 == 0 &&
                     matrix.batch_stride % 4 == 0 &&
                     reinterpret_cast<uint64_t>(matrix.data) % 4 == 0;
  const int64_t side = words ? REPACK_BYTES : REPACK_TILE;
  const int64_t tiles = copies * ceil_div(rows, side) * ceil_div(K, side);
  const dim3 grid(static_cast<unsigned>(tiles < 65536 ? tiles : 65536));
  const dim3 block(REPACK_TILE * REPACK_WARPS);
  const int error =
      words ? launch(repack_bytes, grid, block, 0, stream,
                     static_cast<const uint8_t*>(matrix.data), k_stride, matrix.batch_stride,
                     reinterpret_cast<uint8_t*>(to), pitch, static_cast<int>(rows),
                     static_cast<int>(K), tiles)
            : launch(repack_kmajor<Word>, grid, block, 0, stream,
                     static_cast<const Word*>(matrix.data), row_stride, k_stride,
                     matrix.batch_stride, to, pitch, static_cast<int>(rows), static_cast<int>(K),
                     tiles);
  matrix.data = to;
  (rows_are_k ? matrix.col_stride : matrix.row_stride) = pitch;
  (rows_are_k ? matrix.row_stride : matrix.col_stride) = 1;
  matrix.batch_stride = copies == 1 ? 0 : rows * pitch;
  return error;
}

// The tensor map of an operand in K-major panels of `box_rows` rows; of a repacked copy where TMA cannot
// read the operand so where it is. to_tf32: float32 arrives as tf32. A cudaError_t.
inline int kmajor_map(const Gemm& gemm, Matrix matrix, bool rows_are_k, uint32_t panel_bytes,
                      uint32_t box_rows, bool to_tf32, cudaStream_t stream, CUtensorMap* map) {
  const uint32_t item = static_cast<uint32_t>(bytes_of(gemm.in));
  const auto encode = [&] {
    return sm90::tensor_map(matrix, rows_are_k, gemm.in, panel_bytes / item, box_rows, map,
                            gemm.batch, to_tf32);
  };
  int error = encode();
  if (error != cudaErrorInvalidValue) return error;
  error = item == 4 ? repack_operand<uint32_t>(matrix, rows_are_k, gemm.batch, gemm.scratch, stream)
                    : repack_operand<uint8_t>(matrix, rows_are_k, gemm.batch, gemm.scratch, stream);
  return error == cudaSuccess ? encode() : error;
}

}  // namespace tcgemm
