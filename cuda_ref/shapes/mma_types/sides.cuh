// What mma_types.cu knows of an operand: how a step of it lies in shared memory, who copies it, and
// where a lane finds its elements.
#pragma once

#include "mma_types/stage.cuh"

namespace tcgemm {

template <typename Real, bool K_MAJOR, bool IS_A, int EXTENT, int STEP_K, int THREADS>
struct AnySide {
  using Tile = StageTile<Real, K_MAJOR, EXTENT, STEP_K>;
  using Copies = AnyRowCopies<Tile, THREADS>;
  struct Fragments : StageFragments<Tile, IS_A> {
    __device__ Fragments(int warp_mn, const Operand&, const Real*, int64_t, int64_t)
        : StageFragments<Tile, IS_A>(warp_mn) {}
  };
};

}  // namespace tcgemm
