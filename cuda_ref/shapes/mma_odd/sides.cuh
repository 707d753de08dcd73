// What mma_odd.cu knows of its operands: how a step of each lies in shared memory, who copies it,
// and where a lane finds its elements.
#pragma once

#include "mma_odd/window.cuh"
#include "mma_types/sides.cuh"

namespace tcgemm {

constexpr int SM_BYTES = 232448;  // of shared memory that an SM of Hopper has for blocks

// The side that is read from wherever its rows begin.
template <bool LONG, typename Real, bool K_MAJOR, bool IS_A, int EXTENT, int STEP_K, int THREADS>
struct SideOf {
  using Tile = WindowTile<Real, K_MAJOR, EXTENT, STEP_K>;
  using Copies = WindowCopies<Tile, THREADS>;
  using Fragments = WindowFragments<Tile, IS_A>;
};

// The other, which mma_types has for both.
template <typename Real, bool K_MAJOR, bool IS_A, int EXTENT, int STEP_K, int THREADS>
struct SideOf<false, Real, K_MAJOR, IS_A, EXTENT, STEP_K, THREADS>
    : AnySide<Real, K_MAJOR, IS_A, EXTENT, STEP_K, THREADS> {};

}  // namespace tcgemm
