// What the Hopper rungs share around their mainloops: loading a tile by TMA, storing accumulators.
#pragma once

#include "ptx/wgmma.cuh"
#include "sm90/tensor_map.cuh"
#include "tile/convert.cuh"

namespace tcgemm::sm90 {

constexpr uint32_t MOST_SHARED_BYTES = 232448;  // that an SM gives a block, 227 KB

// One operand tile, ROWS of M or N from `mn` by 64 along K from `k`, to `shared`; its
// ROWS * 128 bytes are announced by the caller. BATCHED: of matrix `batch` of a map of three
// dimensions.
template <Major MAJOR, int ROWS, bool BATCHED = false>
__device__ __forceinline__ void load_tile(uint32_t shared, const CUtensorMap* map, uint32_t barrier,
                                          int mn, int k, int batch = 0) {
  constexpr int BOX = MAJOR == Major::K ? ROWS : 64;
#pragma unroll
  for (int i = 0; i < ROWS; i += BOX) {
    const int inner = MAJOR == Major::K ? k : mn + i, outer = MAJOR == Major::K ? mn : k;
    if constexpr (BATCHED)
      cp_async_bulk_tensor_3d(shared + i * 128, map, barrier, inner, outer, batch);
    else
      cp_async_bulk_tensor_2d(shared + i * 128, map, barrier, inner, outer);
  }
}

// The boxes of the multicast below: rows of M or N.
template <Major MAJOR>
constexpr int BOX_ROWS = MAJOR == Major::K ? 128 : 64;

// The same tile in every block of a cluster of `cluster`: block `rank` loads each cluster-th box
// and multicasts it. Every block's barrier receives all ROWS * 128 bytes.
template <Major MAJOR, int ROWS, bool BATCHED = false, int BOX = BOX_ROWS<MAJOR>>
__device__ __forceinline__ void load_tile_multicast(uint32_t shared, const CUtensorMap* map,
                                                    uint32_t barrier, int mn, int k, int rank,
                                                    int cluster, int batch = 0) {
  const uint16_t ctas = static_cast<uint16_t>((1 << cluster) - 1);
  for (int row = rank * BOX; row < ROWS; row += cluster * BOX) {
    const int inner = MAJOR == Major::K ? k : mn + row, outer = MAJOR == Major::K ? mn + row : k;
    const uint32_t to = shared + row * 128;
    if constexpr (BATCHED) {
      if (cluster > 1)
        cp_async_bulk_tensor_3d_multicast(to, map, barrier, inner, outer, batch, ctas);
      else
        cp_async_bulk_tensor_3d(to, map, barrier, inner, outer, batch);
    } else {
      if (cluster > 1)
        cp_async_bulk_tensor_2d_multicast(to, map, barrier, inner, outer, ctas);
      else
        cp_async_bulk_tensor_2d(to, map, barrier, inner, outer);
    }
  }
}

// Zeros rows `first` to `last` of a K-major tile in each stage of a ring, which no load will write. By
// all THREADS of the block; a barrier must follow.
template <int THREADS>
__device__ __forceinline__ void zero_rows(uint8_t* tile, uint32_t stage_bytes, int stages, int first,
                                          int last) {
  if (first >= last) return;
  for (int stage = 0; stage < stages; ++stage, tile += stage_bytes)
    for (int i = first * 8 + threadIdx.x; i < last * 8; i += THREADS)
      reinterpret_cast<uint4*>(tile)[i] = uint4{};
  fence_proxy_async();
}

// Asks for a tile of ROWS to be brought into the L2, by the boxes that load it. It reads nothing that
// the program sees, so it may stand before griddepcontrol_wait.
template <Major MAJOR, int ROWS, bool BATCHED, int BOX>
__device__ __forceinline__ void prefetch_tile(const CUtensorMap* map, int mn, int k, int batch) {
#ifndef TCGEMM_SIMULATOR
#pragma unroll
  for (int row = 0; row < ROWS; row += BOX) {
    const int inner = MAJOR == Major::K ? k : mn + row, outer = MAJOR == Major::K ? mn + row : k;
    if constexpr (BATCHED)
      asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map),
                   "r"(inner), "r"(outer), "r"(batch)
                   : "memory");
    else
      asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map),
                   "r"(inner), "r"(outer)
                   : "memory");
  }
#endif
}

// D[64, N] += A[64, 16] @ B[16, N], for an N that a tile is built with.
template <int N, typename In, Major A, Major B>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(N == 16 || N == 48 || N == 56 || N == 64 || N == 80 || N == 96 || N == 112 ||
                N == 128 || N == 144 || N == 160 || N == 176 || N == 192 || N == 208 || N == 224 ||
                N == 256);
  if constexpr (N == 16) wgmma_m64n16k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 48) wgmma_m64n48k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 56) wgmma_m64n56k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 64) wgmma_m64n64k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 80) wgmma_m64n80k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 96) wgmma_m64n96k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 112) wgmma_m64n112k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 128) wgmma_m64n128k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 144) wgmma_m64n144k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 160) wgmma_m64n160k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 176) wgmma_m64n176k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 192) wgmma_m64n192k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 208) wgmma_m64n208k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 224) wgmma_m64n224k16<In, A, B>(d, a, b, accumulate);
  if constexpr (N == 256) wgmma_m64n256k16<In, A, B>(d, a, b, accumulate);
}

template <typename Out>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<Out, __half>) {
    __half2 pair = __floats2half2_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return reinterpret_cast<uint32_t&>(pair);
  }
}

// Stores two neighbours in a row as one word.
template <typename Out, typename Acc>
__device__ __forceinline__ void store_pair(Out* to, Acc x, Acc y) {
  if constexpr (std::is_same_v<Out, float>)
    *reinterpret_cast<float2*>(to) = make_float2(x, y);
  else if constexpr (std::is_same_v<Out, int32_t>)
    *reinterpret_cast<int2*>(to) = make_int2(x, y);
  else
    *reinterpret_cast<uint32_t*>(to) = pack<Out>(x, y);
}

// Stores a warpgroup's 64 x (2 * REGISTERS) accumulators with C's corner at (m, n) by plain
// stores, clipped to M and N; any strides.
template <typename Out, typename Acc, int REGISTERS>
__device__ __forceinline__ void store_accumulators(const PlainOutput& c, const Acc (&d)[REGISTERS],
                                                   int m, int n, int M, int N) {
  const int thread = threadIdx.x % 128;
  const int row = m + thread / 32 * 16 + thread % 32 / 4;
  const int col = n + thread % 4 * 2;
  if (c.pairs && m + 64 <= M && n + 2 * REGISTERS <= N) {
    Out* line = static_cast<Out*>(c.data) + row * c.row_stride + col;
#pragma unroll
    for (int half = 0; half < 2; ++half, line += 8 * c.row_stride) {
#pragma unroll
      for (int j = 0; j < REGISTERS / 4; ++j)
        store_pair(line + 8 * j, d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t i = row + half * 8;
    if (i >= M) continue;
    Out* line = static_cast<Out*>(c.data) + i * c.row_stride;
#pragma unroll
    for (int j = 0; j < REGISTERS / 4; ++j) {
      const Acc x = d[4 * j + 2 * half], y = d[4 * j + 2 * half + 1];
      const int64_t k = col + 8 * j;
      if (c.pairs) {
        if (k < N) {
          store_pair(line + k, x, y);
        }
      } else {
        if (k < N) line[k * c.col_stride] = narrow<Out>(x);
        if (k + 1 < N) line[(k + 1) * c.col_stride] = narrow<Out>(y);
      }
    }
  }
}

// Writes 128 bytes of each row of a warpgroup's accumulators, or COLUMNS of them, from `first` on, to
// `chunk` in the order in which TMA's 128-byte swizzle reads it: 16-byte unit u of row r is at
// u ^ (r % 8).
template <typename Out, int COLUMNS = 128 / sizeof(Out), typename Acc, int REGISTERS>
__device__ __forceinline__ void write_chunk(uint32_t chunk, const Acc (&d)[REGISTERS], int first) {
  const uint32_t warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if constexpr (sizeof(Out) == 2) {
    // Lanes 8 i .. 8 i + 7 address matrix i: rows 8 (i % 2), columns 8 (i / 2) of 16 x 16.
    const uint32_t row = warp * 16 + lane % 16, unit = lane / 16;
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; ++j) {
      const float* x = d + (first / 8 + 2 * j) * 4;
      stmatrix_x4(chunk + row * 128 + ((unit + 2 * j) ^ row % 8) * 16, pack<Out>(x[0], x[1]),
                  pack<Out>(x[2], x[3]), pack<Out>(x[4], x[5]), pack<Out>(x[6], x[7]));
    }
  } else {
    const uint32_t row = warp * 16 + lane / 4;  // and row + 8, which swizzles alike
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const Acc* x = d + (first / 8 + j) * 4;
      const uint32_t unit = 2 * j + lane % 4 / 2;
      const uint32_t at = chunk + row * 128 + (unit ^ row % 8) * 16 + lane % 2 * 8;
      st_shared_v2(at, x[0], x[1]);
      st_shared_v2(at + 8 * 128, x[2], x[3]);
    }
  }
}

// Stores a chunk that write_chunk has left in shared memory by plain stores, clipped to M and N; C's
// corner of it is (m, n). A warp takes one of the ROWS at a time, so that its store is one run of
// bytes. UNROLL rows are in flight: registers of a thread with 192 accumulators do for one.
template <typename Out, int COLUMNS, int UNROLL = 2, int ROWS = 64>
__device__ __forceinline__ void copy_chunk(const uint8_t* chunk, const PlainOutput& c, int m, int n,
                                           int M, int N) {
  const int lane = threadIdx.x % 32;
#pragma unroll UNROLL
  for (int row = threadIdx.x % 128 / 32; row < ROWS; row += 4) {
    if (m + row >= M) break;
    const uint8_t* from = chunk + row * 128;
    const auto at = [&](int column) {
      const int byte = column * sizeof(Out);
      return from + (byte / 16 ^ row % 8) * 16 + byte % 16;
    };
    Out* line = static_cast<Out*>(c.data) + (m + row) * c.row_stride + n * c.col_stride;
    if (sizeof(Out) == 2 && c.pairs) {
      if (2 * lane < COLUMNS && n + 2 * lane < N)
        reinterpret_cast<uint32_t*>(line)[lane] = *reinterpret_cast<const uint32_t*>(at(2 * lane));
      continue;
    }
#pragma unroll
    for (int i = 0; i < COLUMNS; i += 32) {
      const int column = i + lane;
      if (column < COLUMNS && n + column < N)
        line[column * c.col_stride] = *reinterpret_cast<const Out*>(at(column));
    }
  }
}

}  // namespace tcgemm::sm90
