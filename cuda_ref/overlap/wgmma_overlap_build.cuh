// What a build of wgmma_overlap has besides what it shares with one of wgmma_persistent.
#pragma once

#include "wgmma_persistent_build.cuh"

namespace {

constexpr int64_t PART_BYTES = MMAS * 64 * BLOCK_N * 2;  // of a tile in a slot: a warpgroup's

// A tile of 64 rows is so soon multiplied that its B comes by one box. It has no pairs.
constexpr bool HAS_PAIRS = BLOCK_M > 64;
constexpr int B_WIDTH = HAS_PAIRS ? BLOCK_N / 2 : BLOCK_N;  // of a box

// The producer has a second warp, which begins the call, where it has not a whole warpgroup.
constexpr int OVERLAP_THREADS = THREADS + (MOVES_REGISTERS ? 0 : 32);
constexpr uint32_t BEGUN_AT = SHARED_BYTES;  // a barrier: the peers are done with the slot
constexpr uint32_t OVERLAP_BYTES = BEGUN_AT + 8;
static_assert(OVERLAP_BYTES <= MOST_SHARED_BYTES, "a block has room for one barrier more");

}  // namespace
