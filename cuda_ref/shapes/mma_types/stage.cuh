// A step along K of an operand in shared memory, of elements of 4 or 8 bytes: how it lies there, its
// copies from rows that begin anywhere, and the loads of a warp.
#pragma once

#include "ptx/mma.cuh"
#include "tile/predicated_loader.cuh"

namespace tcgemm {

// EXTENT of M or N by STEP_K, in rows along K (K_MAJOR), one for each m or n, or along M or N, one
// for each k. The 16-byte units of a row change places by an XOR with bits of its number, so that
// the lanes of a load meet in no bank:
//
//   float along K       ldmatrix: 8 rows at the same unit
//   float across K      8 bytes a lane, half a warp at a time: 4 rows at 2 neighbouring units; rows
//                       of 64 bytes share the banks in pairs
//   double              the same, either way
template <typename Element, bool ALONG_K, int EXTENT, int DEPTH>
struct StageTile {
  using In = Element;
  static constexpr bool K_MAJOR = ALONG_K;
  static constexpr int STEP_K = DEPTH;
  static constexpr int ROWS = K_MAJOR ? EXTENT : STEP_K, COLS = K_MAJOR ? STEP_K : EXTENT;
  static constexpr int VECTOR = 16 / sizeof(In), UNITS = COLS / VECTOR, ROW_BYTES = UNITS * 16;
  static constexpr int BYTES = ROWS * ROW_BYTES;

  // That of a sum of rows without a common bit is the XOR of both.
  __device__ static constexpr int swizzle(int row) {
    if (UNITS == 4) return row / 2 % 2 * 2;
    return sizeof(In) == 4 && K_MAJOR ? row % 8 : row % 4 * 2;
  }
  // Bytes from the tile's start to a unit.
  __device__ static constexpr int at(int row, int unit) {
    return row * ROW_BYTES + (unit ^ swizzle(row)) * 16;
  }
};

// One thread's share of the copies of an operand's stages, which follow each other along K. In
// vectors of 16 bytes where rows begin at multiples of them; else element by element, each on its
// own way to shared memory past the registers, by neighbouring lanes. What lies outside becomes zero.
template <typename Tile, int THREADS>
struct AnyRowCopies {
  using In = typename Tile::In;
  static constexpr bool K_MAJOR = Tile::K_MAJOR;

  // Of units, or of elements: how many each row has, rows of one pass of all threads, and passes.
  template <int IN_A_ROW>
  struct Passes {
    static constexpr int STEP = THREADS / IN_A_ROW, COUNT = Tile::ROWS / STEP;
    static_assert(THREADS % IN_A_ROW == 0 && Tile::ROWS % STEP == 0 && (STEP & (STEP - 1)) == 0);
  };

  const char* source;    // of the next stage's first element of this thread
  int64_t step_bytes;    // from a pass to the next
  int64_t stage_bytes;   // from a stage to the next
  int64_t left;          // from this thread's first element to the end along K
  int to;                // bytes from the stage's start
  int inside;            // rows from the first to the end of M or N; across K elements of a unit
  bool vectors;

  // For stages from (mn0, k0) on of the matrix `data` of the batch, up to K.
  __device__ AnyRowCopies(const Operand& from, const In* data, int64_t mn0, int64_t k0, int64_t K) {
    vectors = from.vectors;
    const int in_a_row = vectors ? Tile::UNITS : Tile::COLS;
    const int row = threadIdx.x / in_a_row, place = threadIdx.x % in_a_row;
    const int col = vectors ? place * Tile::VECTOR : place;
    to = Tile::at(row, col / Tile::VECTOR) + col % Tile::VECTOR * static_cast<int>(sizeof(In));
    keep_in_register(to);
    const int64_t outer = row + (K_MAJOR ? mn0 : k0), inner = col + (K_MAJOR ? k0 : mn0);
    source = reinterpret_cast<const char*>(data + outer * from.outer_stride +
                                           inner * from.inner_stride);
    step_bytes = THREADS / in_a_row * from.outer_stride * static_cast<int64_t>(sizeof(In));
    stage_bytes = Tile::STEP_K * static_cast<int64_t>(sizeof(In)) *
                  (K_MAJOR ? from.inner_stride : from.outer_stride);
    left = K - k0 - (K_MAJOR ? col : row);
    inside = K_MAJOR ? clamp(from.outer - mn0 - row, Tile::ROWS)
                     : clamp(from.inner - mn0 - col, vectors ? Tile::VECTOR : 1);
  }

  // Starts the copies of the next stage.
  __device__ __forceinline__ void start(unsigned char* stage) {
    if (vectors) {
      start_passes<Passes<Tile::UNITS>, Tile::VECTOR>(stage);
    } else {
      start_passes<Passes<Tile::COLS>, 1>(stage);
    }
    source += stage_bytes;
    left -= Tile::STEP_K;
  }

  template <typename Of, int WIDTH>
  __device__ __forceinline__ void start_passes(unsigned char* stage) const {
    const int rows = K_MAJOR ? inside : clamp(left, Tile::ROWS);
    const int bytes = (K_MAJOR ? clamp(left, WIDTH) : inside) * static_cast<int>(sizeof(In));
    const char* from = source;
#pragma unroll
    for (int i = 0; i < Of::COUNT; ++i, from += step_bytes) {
      const int row = i * Of::STEP;
      unsigned char* const at = stage + (to ^ (Tile::swizzle(row) * 16)) + row * Tile::ROW_BYTES;
      const int count = row < rows ? bytes : 0;
      if constexpr (WIDTH == 1) {
        cp_async_element<sizeof(In)>(at, from, count);
      } else {
        cp_async_16(at, from, count);
      }
    }
  }
};

// Where a lane finds elements of an operand for mma.sync. A part is 16 of M or N by 8 of K, of which
// lane 4 g + t has those of line g of half h at k = 4 q + t: in the order of the instruction's
// registers, x[2 q + h] of A, and x[2 h + q] of B, whose halves are two instructions'.
template <typename Tile, bool IS_A>
struct StageFragments {
  using In = typename Tile::In;
  static constexpr bool K_MAJOR = Tile::K_MAJOR, BY_PAIRS = sizeof(In) == 4 && !K_MAJOR;
  static constexpr int PART = 16, PART_K = 8;
  int first;  // bytes from the stage's start, of the first part along M or N at the first k

  __device__ static constexpr int element(int h, int q) { return IS_A ? 2 * q + h : 2 * h + q; }
  // Which of the 16 line g of half h is. Across K two neighbours are one load of 8 bytes.
  __device__ static constexpr int line(int h, int g) { return BY_PAIRS ? 2 * g + h : 8 * h + g; }

  __device__ explicit StageFragments(int warp_mn) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (BY_PAIRS) {
      const int mn = warp_mn + line(0, g);
      first = Tile::at(t, mn / Tile::VECTOR) + mn % Tile::VECTOR * 4;
    } else if constexpr (sizeof(In) == 4) {  // the row that this lane gives to ldmatrix
      const int near = lane / 8 % 2, far = lane / 16;
      first = Tile::at(warp_mn + (IS_A ? near : far) * 8 + lane % 8, IS_A ? far : near);
    } else if constexpr (K_MAJOR) {
      first = Tile::at(warp_mn + g, t / 2) + t % 2 * 8;
    } else {
      first = Tile::at(t, (warp_mn + g) / 2) + g % 2 * 8;
    }
    keep_in_register(first);
  }

  // Part `i` along M or N, `step` along K. Moves that are not along rows are XORs of units.
  __device__ __forceinline__ void load(In (&x)[4], const unsigned char* stage, int i,
                                       int step) const {
    if constexpr (BY_PAIRS) {
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        const int at = (first ^ (i * PART * 4)) + (step * PART_K + 4 * q) * Tile::ROW_BYTES;
        const float2 two = *reinterpret_cast<const float2*>(stage + at);
        x[element(0, q)] = two.x;
        x[element(1, q)] = two.y;
      }
    } else if constexpr (sizeof(In) == 4) {
      uint32_t m[4];
      const uint32_t at = (first ^ (step * PART_K * 4)) + i * PART * Tile::ROW_BYTES;
      ldmatrix_x4<false>(m, static_cast<uint32_t>(__cvta_generic_to_shared(stage)) + at);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = __uint_as_float(m[e]);
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const int at = K_MAJOR ? (first ^ (step * PART_K * 8 + q * 32)) +
                                       (i * PART + 8 * h) * Tile::ROW_BYTES
                                 : (first ^ (i * PART * 8 + h * 64)) +
                                       (step * PART_K + 4 * q) * Tile::ROW_BYTES;
          x[element(h, q)] = *reinterpret_cast<const double*>(stage + at);
        }
      }
    }
  }
};

}  // namespace tcgemm
