// Copies of tiles from global memory to stages in shared memory, with all addresses worked out
// before the loop: what is left of a copy inside it is one cp.async and one addition.
#pragma once

#include "ptx/mma.cuh"
#include "tile/predicated_loader.cuh"

namespace tcgemm {

// A tile of an operand in shared memory: EXTENT of M or N by BLOCK_K, in rows along K (K_MAJOR),
// one for each m or n, or along M or N, one for each k. Rows are not padded. Their 16-byte units
// change places by an XOR with bits of the row's number, so that the lanes of a load meet in no
// bank:
//
//   16-bit elements, by ldmatrix   8 rows at the same unit: as many different units. Rows of 64
//                                  bytes share the banks in pairs.
//   float64, 8 bytes a lane        half a warp at a time, 4 rows at 2 neighbouring units
template <typename Element, bool ALONG_K, int EXTENT, int BLOCK_K>
struct SwizzledTile {
  using In = Element;
  static constexpr bool K_MAJOR = ALONG_K;
  static constexpr int VECTOR = 16 / sizeof(In);  // elements in a unit
  static constexpr int ROWS = K_MAJOR ? EXTENT : BLOCK_K;
  static constexpr int COLS = K_MAJOR ? BLOCK_K : EXTENT;
  static constexpr int STEP_K = BLOCK_K;
  static constexpr bool THROUGH_L1 = false;
  static constexpr int UNITS = COLS / VECTOR;  // in a row
  static constexpr int ROW_BYTES = UNITS * 16;
  static_assert(UNITS >= (sizeof(In) == 2 ? 4 : 8));

  // What a unit's number is XORed with. That of a sum of rows without a common bit is the XOR of
  // both.
  __device__ static constexpr int swizzle(int row) {
    if (sizeof(In) == 8) return row % 4 * 2;
    return UNITS == 4 ? row / 2 % 4 : row % 8;
  }
  // Bytes from the tile's start to a unit.
  __device__ static constexpr int at(int row, int unit) {
    return row * ROW_BYTES + (unit ^ swizzle(row)) * 16;
  }
};

// Where a lane finds its rows for ldmatrix, in bytes from the operand's tile. A 16 x 16 part has
// four matrices: from one to the next A goes along M first, B along K first.
template <typename Tile, bool IS_A>
struct LdmatrixRows {
  static constexpr bool K_MAJOR = Tile::K_MAJOR;
  int first;

  __device__ explicit LdmatrixRows(int warp_mn) {
    const int line = threadIdx.x % 8, near = threadIdx.x / 8 % 2, far = threadIdx.x / 16 % 2;
    const int mn = IS_A ? near : far, k = IS_A ? far : near;  // in units of 8
    first = K_MAJOR ? Tile::at(warp_mn + 8 * mn + line, k)
                    : Tile::at(8 * k + line, warp_mn / 8 + mn);
    keep_in_register(first);
  }
  // Of part i along M or N at a step along K. Whole units exchange places within aligned groups of
  // 4 or 8, so an XOR moves from unit to unit.
  __device__ uint32_t operator()(uint32_t tile, int i, int step) const {
    const int rows = K_MAJOR ? i : step, units = K_MAJOR ? step : i;
    return ((tile + first) ^ (units * 32)) + rows * 16 * Tile::ROW_BYTES;
  }
};

// The same with rows padded by PAD elements, and no swizzle. Where 16 bytes of padding put every
// other row out of step with the sectors, the L2 would send those twice: short rows, those along K,
// are copied through the L1.
template <typename Element, bool ALONG_K, int EXTENT, int BLOCK_K, int PAD>
struct PaddedTile {
  using In = Element;
  static constexpr bool K_MAJOR = ALONG_K;
  static constexpr int VECTOR = 16 / sizeof(In);
  static constexpr int ROWS = K_MAJOR ? EXTENT : BLOCK_K;
  static constexpr int COLS = K_MAJOR ? BLOCK_K : EXTENT;
  static constexpr int STEP_K = BLOCK_K;
  static constexpr bool THROUGH_L1 = K_MAJOR;
  static constexpr int UNITS = COLS / VECTOR;
  static constexpr int LD = COLS + PAD;  // elements from row to row
  static constexpr int ROW_BYTES = LD * sizeof(In);

  __device__ static constexpr int swizzle(int) { return 0; }
  __device__ static constexpr int at(int row, int unit) { return row * ROW_BYTES + unit * 16; }
};

// One thread's share of the copies of an operand's tiles, which follow each other along K.
//
// Nothing outside of the operand is read. Rows and units beyond its M or N are taken from inside
// it: what they hold meets no element of C. Beyond K, and in units that the end of M or N divides,
// go zeros and single elements (copy_checked). ONE_POINTER: for want of registers rows are found
// from the first, and those beyond M or N are zeros.
template <typename Tile, int THREADS, bool ONE_POINTER = false>
struct StageCopies {
  using In = typename Tile::In;
  static constexpr bool K_MAJOR = Tile::K_MAJOR;
  static constexpr int STEP = THREADS / Tile::UNITS;  // rows that all threads copy at once
  static constexpr int COUNT = Tile::ROWS / STEP;
  // Rows beyond M or N have pointers of their own; rows along K follow each other.
  static constexpr int POINTERS = K_MAJOR && !ONE_POINTER ? COUNT : 1;
  static_assert(THREADS % Tile::UNITS == 0 && Tile::ROWS % STEP == 0 && (STEP & (STEP - 1)) == 0);

  const char* sources[POINTERS];  // of the next tile to be copied
  int64_t step_bytes;             // between rows that are STEP apart
  int to;                         // bytes from the tile's start to the first unit
  int rows;                       // from the first one on to the end of M or N

  // For the tiles from (mn0, 0) on of the matrix `data` of the batch.
  __device__ StageCopies(const Operand& from, const In* data, int64_t mn0) {
    const int row = threadIdx.x / Tile::UNITS, unit = threadIdx.x % Tile::UNITS;
    const int col = unit * Tile::VECTOR;
    to = Tile::at(row, unit);
    keep_in_register(to);
    step_bytes = STEP * from.outer_stride * sizeof(In);
    rows = K_MAJOR ? clamp(from.outer - mn0 - row, Tile::ROWS) : 0;
#pragma unroll
    for (int i = 0; i < POINTERS; ++i) {
      int64_t outer = row + i * STEP, inner = col;
      if (K_MAJOR) {
        outer = min(mn0 + outer, from.outer - 1);
      } else {
        inner = mn0 + (mn0 + inner < from.inner ? inner : 0);
      }
      sources[i] = reinterpret_cast<const char*>(data + outer * from.outer_stride + inner);
    }
  }

  // True where units at the end of M or N are divided by it. Then all copies are checked.
  __device__ static bool divided(const Operand& from, int64_t mn0) {
    return !K_MAJOR && from.inner - mn0 < Tile::COLS && from.inner % Tile::VECTOR != 0;
  }

  // Starts the copies of the next tile, which ends within K.
  __device__ __forceinline__ void start(unsigned char* tile) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const char*& source = sources[POINTERS > 1 ? i : 0];
      const int moved = Tile::swizzle(i * STEP) * 16;
      unsigned char* at = tile + (to ^ moved) + i * STEP * Tile::ROW_BYTES;
      if constexpr (K_MAJOR && ONE_POINTER) {
        cp_async_16(at, sources[0] + i * step_bytes, i * STEP < rows ? 16 : 0);
        if (i + 1 == COUNT) sources[0] += Tile::STEP_K * sizeof(In);
        continue;
      }
      if constexpr (Tile::THROUGH_L1) {
        cp_async_ca_16(at, source);
      } else {
        cp_async_16(at, source);
      }
      source += K_MAJOR ? static_cast<int64_t>(Tile::STEP_K * sizeof(In)) : step_bytes;
    }
  }

  // Copies the tile at (mn0, k0) by ordinary stores, zeros outside the operand.
  __device__ static void copy_checked(unsigned char* tile, const Operand& from, const In* data,
                                      int64_t mn0, int64_t k0) {
    const int64_t outer0 = K_MAJOR ? mn0 : k0, inner0 = K_MAJOR ? k0 : mn0;
    const int unit = threadIdx.x % Tile::UNITS, col = unit * Tile::VECTOR;
    const int inside = clamp(from.inner - inner0 - col, Tile::VECTOR);
#pragma unroll 1
    for (int row = threadIdx.x / Tile::UNITS; row < Tile::ROWS; row += STEP) {
      In* to = reinterpret_cast<In*>(tile + Tile::at(row, unit));
      const In* source = data + (outer0 + row) * from.outer_stride +
                         (inner0 + col) * from.inner_stride;
      const int count = outer0 + row < from.outer ? inside : 0;
#pragma unroll 1
      for (int e = 0; e < Tile::VECTOR; ++e, source += from.inner_stride) {
        to[e] = e < count ? *source : zero<In>();
      }
    }
  }
};

}  // namespace tcgemm
