// The ring of stages of wgmma_types, and what lies where in a stage.
#pragma once

#include "host/repack.cuh"
#include "sm90/tile.cuh"
#include "wgmma_types/registers.cuh"

namespace tcgemm::sm90 {

// A warp's place in a ring of STAGES stages. Barriers of 8 bytes each, from `barriers` on: full (has
// been loaded), empty (has been read), split (low parts are there).
template <uint32_t STAGES>
struct Ring {
  uint32_t barriers;
  uint32_t stage = 0, phase = 0;

  __device__ uint32_t full() const { return barriers + 8 * stage; }
  __device__ uint32_t empty() const { return full() + 8 * STAGES; }
  __device__ uint32_t split() const { return full() + 16 * STAGES; }
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, phase ^= 1;
  }
  __device__ void skip(uint32_t steps) {
    stage += steps;
    phase ^= stage / STAGES & 1;
    stage %= STAGES;
  }
  // Gives back the stage that was read `ago` steps before the next one, to every block of a cluster.
  __device__ void release(uint32_t ago, int cluster) const {
    const uint32_t at = stage < ago ? stage + STAGES - ago : stage - ago;
    const int lane = threadIdx.x % 32;
    if (lane < cluster) mbarrier_arrive_cluster(barriers + 8 * (STAGES + at), lane);
  }
};

// Where a consumer finds its rows of A, and all of B, in a stage.
template <typename T>
struct Operands {
  uint32_t stages;  // address of the first
  int row;          // of the consumer in the tile
  int cluster;

  __device__ uint32_t a(uint32_t stage) const {
    return stages + stage * T::STAGE_BYTES + row * 128;
  }
  __device__ uint64_t a_descriptor(uint32_t stage) const { return wgmma_descriptor(a(stage)); }
  __device__ uint64_t b_descriptor(uint32_t stage) const {
    return wgmma_descriptor(stages + stage * T::STAGE_BYTES + T::A_BYTES);
  }
};

// The tensor map of A; of a copy along K where TMA can read it neither so nor, for ACROSS, across K. A
// cudaError_t.
template <typename T>
int map_of_a(const Gemm& gemm, bool to_tf32, cudaStream_t stream, CUtensorMap* map) {
  if constexpr (T::ACROSS)
    return tensor_map(gemm.a, true, gemm.in, ACROSS_ROWS, ACROSS_ROWS, map, gemm.batch, to_tf32);
  return kmajor_map(gemm, gemm.a, false, 128, T::M, to_tf32, stream, map);
}

// Loads a tile's rows of A, 128 bytes of K, or ACROSS_ROWS along K, to a stage.
template <typename T>
__device__ __forceinline__ void load_a(uint32_t stage, const CUtensorMap* map, uint32_t barrier,
                                       int m, int k, int batch) {
  if constexpr (T::ACROSS) {
#pragma unroll
    for (int i = 0; i < T::M; i += ACROSS_ROWS)
      cp_async_bulk_tensor_3d(stage + i * 128, map, barrier, m + i, k, batch);
  } else {
    load_tile<Major::K, T::M, true>(stage, map, barrier, m, k, batch);
  }
}

}  // namespace tcgemm::sm90
