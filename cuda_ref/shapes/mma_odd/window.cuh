// A step along K of an operand whose rows begin anywhere, copied in units of 16 bytes: each row
// from the multiple of 16 bytes below its first element on, so that it lies in shared memory as far
// from one as it does in memory.
#pragma once

#include "ptx/mma.cuh"
#include "tile/predicated_loader.cuh"

namespace tcgemm {

// EXTENT of M or N by DEPTH of K, in rows along K (K_MAJOR), one for each m or n, or along M or N,
// one for each k. A row has room for a unit more than its elements fill, and is shifted by less
// than a unit. Rows along K are 16 bytes past a multiple of 128 apart, those across it 32.
template <typename Element, bool ALONG_K, int EXTENT, int DEPTH>
struct WindowTile {
  using In = Element;
  static constexpr bool K_MAJOR = ALONG_K;
  static constexpr int STEP_K = DEPTH;
  static constexpr int ROWS = K_MAJOR ? EXTENT : STEP_K, COLS = K_MAJOR ? STEP_K : EXTENT;
  static constexpr int VECTOR = 16 / sizeof(In), UNITS = COLS / VECTOR;
  static constexpr int ROW_BYTES = UNITS * 16 + (K_MAJOR ? 16 : 32), BYTES = ROWS * ROW_BYTES;
};

// Elements from the multiple of 16 bytes below an address up to it.
template <typename In>
__device__ __forceinline__ int shift_of(const In* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % 16 / sizeof(In));
}

// One thread's share of the copies of an operand's stages, which follow each other along K. Nothing
// outside of the operand is read: what lies beyond it becomes zero, and where a unit begins before
// its first column, its elements come one by one.
template <typename Tile, int THREADS>
struct WindowCopies {
  using In = typename Tile::In;
  static constexpr bool K_MAJOR = Tile::K_MAJOR;
  static constexpr int SIZE = sizeof(In), UNITS = Tile::UNITS, VECTOR = Tile::VECTOR;
  static constexpr int STEP = THREADS / UNITS;  // rows of one pass of all threads
  static constexpr int COUNT = Tile::ROWS / STEP;
  static_assert(THREADS % UNITS == 0 && Tile::ROWS % STEP == 0 && Tile::ROWS <= THREADS);
  static_assert(STEP * SIZE % 16 == 0, "a thread's rows are all shifted alike");

  // Of a row, the next unit of this thread: where it begins, elements from there to the end, how
  // many of its own lie before the first column, and how far the row is shifted.
  struct Unit {
    const char* source;
    int64_t left;
    int before, shift;
  };
  Unit unit, last;      // of the first pass, and the one that a shifted row has more
  int64_t step_bytes;   // from a pass to the next
  int64_t stage_bytes;  // from a stage to the next
  int64_t k_left;       // across K: rows from this thread's first one to the end
  int64_t k_left_last;
  int rows, rows_last;  // along K: from this thread's first one to the end of M or N
  int to;

  __device__ Unit unit_of(const Operand& from, const In* data, int64_t outer, int64_t inner0,
                          int64_t end, int place) const {
    const In* const at = data + outer * from.outer_stride + inner0;
    const int shift = shift_of(at), col = place * VECTOR - shift;
    return {reinterpret_cast<const char*>(at + col), end - inner0 - col,
            inner0 + col < 0 ? shift : 0, shift};
  }

  // For stages from (mn0, k0) on of the matrix `data` of the batch, up to K.
  __device__ WindowCopies(const Operand& from, const In* data, int64_t mn0, int64_t k0,
                          int64_t K) {
    const int row = threadIdx.x / UNITS, place = threadIdx.x % UNITS;
    const int row_last = threadIdx.x;
    const int64_t outer0 = K_MAJOR ? mn0 : k0, inner0 = K_MAJOR ? k0 : mn0;
    const int64_t end = K_MAJOR ? K : from.inner;
    unit = unit_of(from, data, outer0 + row, inner0, end, place);
    last = unit_of(from, data, outer0 + row_last, inner0, end, UNITS);
    to = row * Tile::ROW_BYTES + place * 16;
    step_bytes = STEP * from.outer_stride * int64_t{SIZE};
    stage_bytes = Tile::STEP_K * int64_t{SIZE} * (K_MAJOR ? 1 : from.outer_stride);
    rows = clamp(from.outer - outer0 - row, Tile::ROWS);
    rows_last = clamp(from.outer - outer0 - row_last, Tile::ROWS);
    k_left = K - k0 - row;
    k_left_last = K - k0 - row_last;
  }

  // Starts the copies of the next stage.
  __device__ __forceinline__ void start(unsigned char* stage) {
    const int inside = K_MAJOR ? rows : clamp(k_left, Tile::ROWS);
    const int bytes = clamp(unit.left, VECTOR) * SIZE;
    const char* from = unit.source;
    unsigned char* at = stage + to;
    if (unit.before == 0) {
#pragma unroll
      for (int i = 0; i < COUNT; ++i, from += step_bytes)
        cp_async_16(at + i * STEP * Tile::ROW_BYTES, from, i * STEP < inside ? bytes : 0);
    } else {
#pragma unroll 1
      for (int i = 0; i < COUNT; ++i, from += step_bytes)
#pragma unroll
        for (int e = 1; e < VECTOR; ++e)
          if (e >= unit.before)
            cp_async_element<SIZE>(at + i * STEP * Tile::ROW_BYTES + e * SIZE, from + e * SIZE,
                                   i * STEP < inside && e * SIZE < bytes ? SIZE : 0);
    }
    const int inside_last = K_MAJOR ? rows_last : clamp(k_left_last, Tile::ROWS);
    if (threadIdx.x < Tile::ROWS && last.shift > 0)
      cp_async_16(stage + threadIdx.x * Tile::ROW_BYTES + UNITS * 16, last.source,
                  inside_last > 0 ? clamp(last.left, VECTOR) * SIZE : 0);
    unit.source += stage_bytes;
    last.source += stage_bytes;
    if constexpr (K_MAJOR) {
      unit.left -= Tile::STEP_K;
      last.left -= Tile::STEP_K;
      unit.before = 0;  // what begins later begins in the row
    } else {
      k_left -= Tile::STEP_K;
      k_left_last -= Tile::STEP_K;
    }
  }
};

// Where a lane finds elements of an operand for mma.sync, as StageFragments: those of line g of
// half h of a part at k = 4 q + t. All of its rows are shifted alike.
template <typename Tile, bool IS_A>
struct WindowFragments {
  using In = typename Tile::In;
  static constexpr bool K_MAJOR = Tile::K_MAJOR;
  static constexpr int PART = 16, PART_K = 8, SIZE = sizeof(In);
  int first;  // bytes from the stage's start, of the first part along M or N at the first k

  __device__ static constexpr int element(int h, int q) { return IS_A ? 2 * q + h : 2 * h + q; }
  // Which of the 16 line g of half h is. Of doubles along K half a warp loads from every second
  // row, all of which begin at a multiple of 16 bytes or none: 32 bytes of each, 32 banks in all.
  __device__ static constexpr int line(int h, int g) {
    return 8 * h + (K_MAJOR && SIZE == 8 ? g % 4 * 2 + g / 4 : g);
  }

  __device__ WindowFragments(int warp_mn, const Operand& of, const In* data, int64_t mn0,
                             int64_t k0) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int row = K_MAJOR ? line(0, g) : t, col = K_MAJOR ? t : line(0, g);
    const int64_t outer = K_MAJOR ? mn0 + row : k0 + row, inner = K_MAJOR ? k0 : mn0;
    const int shift = shift_of(data + outer * of.outer_stride + inner);
    const int warp_row = K_MAJOR ? warp_mn : 0, warp_col = K_MAJOR ? 0 : warp_mn;
    first = (warp_row + row) * Tile::ROW_BYTES + (warp_col + col + shift) * SIZE;
    keep_in_register(first);
  }

  // Part `i` along M or N, `step` along K.
  __device__ __forceinline__ void load(In (&x)[4], const unsigned char* stage, int i,
                                       int step) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int mn = i * PART + 8 * h, k = step * PART_K + 4 * q;
        const int at = (K_MAJOR ? mn : k) * Tile::ROW_BYTES + (K_MAJOR ? k : mn) * SIZE;
        x[element(h, q)] = *reinterpret_cast<const In*>(stage + first + at);
      }
  }
};

}  // namespace tcgemm
