// What a thread of small.cu holds of an operand: how it is loaded and handed to mma.sync.
#pragma once

#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/sm90.cuh"

namespace tcgemm::sm90 {

constexpr int PATCH = 4;  // elements along M or N, and along K

// How an operand is read: in words along K, or along M or N; or that none fit but elements.
enum class Access { K, MN, elements };

// A, or B by its columns: element (mn, k) is at data + mn * mn_stride + k * k_stride.
struct Side {
  const uint16_t* data;
  int64_t mn_stride, k_stride, batch_stride;
  int mn, K;
};

// Of two words that hold two elements of two rows of k each, the first or the second of both.
__device__ __forceinline__ uint32_t even(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x5410);
}
__device__ __forceinline__ uint32_t odd(uint32_t k0, uint32_t k1) {
  return __byte_perm(k0, k1, 0x7632);
}

// Four neighbours, at a multiple of BYTES, in words of as many; zeros from `inside` on, which
// divides no word.
template <int BYTES>
__device__ __forceinline__ uint2 load_line(const uint16_t* from, int inside) {
  if constexpr (BYTES == 8) {
    return inside > 0 ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
  } else {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    return make_uint2(inside > 0 ? words[0] : 0, inside > 2 ? words[1] : 0);
  }
}

// 4 x 4 elements from (mn, k) on, both multiples of 4. What lies beyond K is zero; beyond M or N it
// is zero or taken from inside the operand, since it meets no element of C.
template <Access ACCESS, int BYTES>
struct Patch {
  // As loaded: of Access::MN by k, else by m or n; two elements to a word.
  uint2 lines[PATCH];

  __device__ __forceinline__ void load(const Side& from, int mn, int k) {
#pragma unroll
    for (int s = 0; s < PATCH; ++s) {
      if constexpr (ACCESS == Access::MN) {
        lines[s] = load_line<BYTES>(from.data + mn + (k + s) * from.k_stride,
                                    k + s < from.K ? from.mn - mn : 0);
      } else {
        const uint16_t* at = from.data + min(mn + s, from.mn - 1) * from.mn_stride;
        lines[s] = load_line<BYTES>(at + k, from.K - k);
      }
    }
  }

  // Asks for it to be brought into the L2.
  __device__ __forceinline__ static void prefetch(const Side& from, int mn, int k) {
    if (k >= from.K) return;
#pragma unroll
    for (int s = 0; s < PATCH; ++s) {
      const int row = min(ACCESS == Access::MN ? mn : mn + s, from.mn - 1);
      const int col = min(ACCESS == Access::MN ? k + s : k, from.K - 1);
      prefetch_global_l2(from.data + row * from.mn_stride + col * from.k_stride);
    }
  }

  // The elements of row `s` along K, two to a word.
  __device__ __forceinline__ uint2 row(int s) const {
    if constexpr (ACCESS == Access::MN) {
      uint32_t x[PATCH];
#pragma unroll
      for (int k = 0; k < PATCH; ++k) x[k] = s < 2 ? lines[k].x : lines[k].y;
      return s % 2 == 0 ? make_uint2(even(x[0], x[1]), even(x[2], x[3]))
                        : make_uint2(odd(x[0], x[1]), odd(x[2], x[3]));
    } else {
      return lines[s];
    }
  }
};

// D[32, 32] += A[32, 16] B[16, 32] from the patches of a warp's lanes. Lane l = 4 g + t has those
// from row or column 4 g and from k = 4 t on. Which k of an mma is which does not matter as long as
// A and B agree; nor which row or column, as long as D is read accordingly.
template <typename In, typename A, typename B>
__device__ __forceinline__ void multiply(float (&d)[2][PATCH][4], const A& a, const B& b) {
#pragma unroll
  for (int j = 0; j < PATCH; ++j) {
    const uint2 column = b.row(j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 low = a.row(2 * i), high = a.row(2 * i + 1);
      mma_m16n8k16<In>(d[i][j], {low.x, high.x, low.y, high.y}, column.x, column.y);
    }
  }
}

// Of a lane's accumulators, group q of 8: four neighbours of row 4 g + q / 2, from column 8 t + 4 (q % 2).
__device__ __forceinline__ float4 group_of_four(const float (&d)[2][PATCH][4], int q) {
  const int i = q / 4, e = q / 2 % 2 * 2 + q % 2;
  return make_float4(d[i][0][e], d[i][1][e], d[i][2][e], d[i][3][e]);
}

// Staged: what a block has of an operand at a time, and how it comes there.

constexpr int STAGED_THREADS = 256;

// Elements along K of a stage.
template <int BYTES, int TILE>
constexpr int DEPTH = BYTES == 16 ? 128 : TILE == 64 ? 32 : 64;

// TILE of M or N by STAGE_DEPTH of K, rows as they lie, in words of BYTES. Each thread loads PASSES
// words of a stage, PASS rows apart. Where K is at most half of a stage, half of the passes do: of
// the threads that are beside each other in a K-major row, half then have a row further down.
template <Access ACCESS, int BYTES, int TILE_>
struct Panel {
  static constexpr bool K_MAJOR = ACCESS == Access::K;
  static constexpr int TILE = TILE_, STAGE_DEPTH = DEPTH<BYTES, TILE_>;
  static constexpr int ROWS = K_MAJOR ? TILE : STAGE_DEPTH, COLS = K_MAJOR ? STAGE_DEPTH : TILE;
  static constexpr int PITCH = COLS + 8;  // elements: ldmatrix reads eight rows from all banks
  static constexpr int SIZE = ROWS * PITCH;
  static constexpr int WIDTH = BYTES / 2, WORDS = COLS / WIDTH;  // elements; words of a row
  static constexpr int PASS = STAGED_THREADS / WORDS, PASSES = ROWS / PASS;
  using Word = std::conditional_t<BYTES == 16, uint4, uint16_t>;
  using Register = std::conditional_t<BYTES == 16, uint4, uint32_t>;  // of a word
  static_assert(PASSES % 2 == 0 && PASSES * PASS == ROWS && PASS * WORDS == STAGED_THREADS);

  const uint16_t* at;  // this thread's first word of the next stage
  int place, limit;    // where it goes in the panel; rows of the operand from there on
  int k_inside;        // from the beginning of the stage

  // From (mn, k) on. `halved`: K is at most STAGE_DEPTH / 2.
  __device__ __forceinline__ Panel(const Side& from, int mn, int k, bool halved) {
    const int word = threadIdx.x % WORDS, row = threadIdx.x / WORDS;
    int x = word * WIDTH, y = row;
    if (K_MAJOR && halved) x = word % (WORDS / 2) * WIDTH, y += word / (WORDS / 2) * (ROWS / 2);
    place = y * PITCH + x;
    k_inside = K_MAJOR ? x : y;
    const int along_mn = K_MAJOR ? y : x;
    limit = K_MAJOR ? from.mn - mn - y : x < from.mn - mn ? from.K - y : 0;
    at = from.data + static_cast<uint32_t>(mn + along_mn) * from.mn_stride +
         static_cast<uint32_t>(k + k_inside) * from.k_stride;
  }

  __device__ __forceinline__ static int64_t pass_stride(const Side& from) {
    return PASS * (K_MAJOR ? from.mn_stride : from.k_stride);
  }

  // Rows from this thread's first one on that lie in the operand: of the stage at `k`.
  __device__ __forceinline__ int inside(const Side& from, int k) const {
    if constexpr (!K_MAJOR) return limit - k;
    return k + k_inside < from.K ? limit : 0;
  }

  // Whether the later half of the passes has nothing of the stage at `k`.
  __device__ __forceinline__ static bool few(const Side& from, int k, bool halved) {
    return K_MAJOR ? halved : from.K - k <= STAGE_DEPTH / 2;
  }

  // Asks for the rows of the first stage to be brought into the L2, each by some threads.
  __device__ __forceinline__ void prefetch(const Side& from, int k) const {
    const int pass = threadIdx.x % WORDS / (WORDS / PASSES);
    if (pass * PASS < inside(from, k)) prefetch_global_l2(at + pass * pass_stride(from));
  }

  // The stage at `k`, and on to the next; zeros outside of the operand.
  __device__ __forceinline__ void load(Register (&words)[PASSES], const Side& from, int k,
                                       bool halved) {
    const int rows = inside(from, k);
    int64_t stride = pass_stride(from);
    const uint16_t* line = at;
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      if (i == PASSES / 2 && few(from, k, halved)) break;
      words[i] = Register{};
      if (i * PASS < rows) words[i] = *reinterpret_cast<const Word*>(line);
      make_opaque(stride);  // or each line is worked out from `at`, by twice the instructions
      line += stride;
    }
    at += STAGE_DEPTH * from.k_stride;
  }

  // Leaves the words of the stage at `k` in the panel.
  __device__ __forceinline__ void leave(const Register (&words)[PASSES], uint16_t* panel,
                                        const Side& from, int k, bool halved) const {
#pragma unroll
    for (int i = 0; i < PASSES; ++i) {
      if (i == PASSES / 2 && few(from, k, halved)) break;
      *reinterpret_cast<Word*>(panel + place + i * PASS * PITCH) = static_cast<Word>(words[i]);
    }
  }

  // Where a lane's row of eight begins in the panel, of the four matrices of an ldmatrix, from
  // `first` along M or N: 16 x 16 of an operand A of mma.sync; of B 16 columns by 16 along K, or 8
  // by 32.
  __device__ __forceinline__ static int row_of_a(int first, int lane) {
    return K_MAJOR ? (first + lane % 16) * PITCH + lane / 16 * 8
                   : (lane / 16 * 8 + lane % 8) * PITCH + first + lane / 8 % 2 * 8;
  }
  template <int COLUMNS>
  __device__ __forceinline__ static int row_of_b(int first, int lane) {
    const int n = COLUMNS == 16 ? lane / 16 * 8 : 0, k = COLUMNS == 16 ? lane % 16 : lane;
    return K_MAJOR ? (first + n + lane % 8) * PITCH + k / 8 * 8 : k * PITCH + first + n;
  }

  // Elements from a row of a matrix of ldmatrix to the same one further along K, and along M or N.
  __device__ static constexpr int along_k(int k) { return K_MAJOR ? k : k * PITCH; }
  __device__ static constexpr int along_mn(int i) { return K_MAJOR ? i * PITCH : i; }
};

}  // namespace tcgemm::sm90
