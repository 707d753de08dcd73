// What a build of wgmma_persistent is for, one tile and one case of types, and what follows from it:
// the warpgroups of a block, its shared memory, its registers.
#pragma once

#include "sm90/epilogue_tma.cuh"
#include "sm90/scheduler.cuh"

#ifndef TCGEMM_BLOCK_M  // the tile of a build that names none
#define TCGEMM_BLOCK_M 128
#define TCGEMM_BLOCK_N 128
#define TCGEMM_NUM_STAGES 6
#define TCGEMM_CHUNK_BUFFERS 2
#define TCGEMM_PINGPONG 1
#define TCGEMM_SHARES_A 0
#endif

namespace {

using namespace tcgemm;
using namespace tcgemm::sm90;

constexpr int BLOCK_M = TCGEMM_BLOCK_M;
constexpr int BLOCK_N = TCGEMM_BLOCK_N;
constexpr int BLOCK_K = 64;
constexpr uint32_t NUM_STAGES = TCGEMM_NUM_STAGES;
constexpr bool PINGPONG = TCGEMM_PINGPONG;
constexpr int GROUP_M = 2048 / BLOCK_M;
constexpr int CONSUMERS = BLOCK_M == 64 ? 1 : BLOCK_M == 192 ? 3 : 2;
constexpr int WARPGROUPS_OF_A_TILE = PINGPONG ? 1 : CONSUMERS;  // warpgroups that share a tile
constexpr int MMAS = BLOCK_M / 64 / WARPGROUPS_OF_A_TILE;
constexpr int PANELS = (BLOCK_N - 1) / PANEL + 1;  // of 64 columns of B, the last maybe in part
constexpr int CHUNK_BUFFERS = TCGEMM_CHUNK_BUFFERS;
constexpr uint32_t A_BYTES = BLOCK_M * BLOCK_K * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + PANELS * BYTES_PER_64_MN;
// In this order: the ring, chunks of C, barriers.
constexpr uint32_t CHUNKS_AT = NUM_STAGES * STAGE_BYTES;
constexpr uint32_t BARRIERS_AT = CHUNKS_AT + CONSUMERS * CHUNK_BUFFERS * CHUNK_BYTES;
constexpr uint32_t BARRIERS = 2 * NUM_STAGES + 2 + CONSUMERS * CHUNK_BUFFERS;
constexpr uint32_t SHARED_BYTES = BARRIERS_AT + 8 * BARRIERS;
// Consumers first, then the producer: a warp, or where consumers want more registers than a thread
// has at launch, 168 of two consumers and 128 of three, a warpgroup that gives them its own:
// 40 + 2 * 232 = 3 * 168, 32 + 3 * 160 = 4 * 128.
constexpr bool MOVES_REGISTERS = CONSUMERS > 1;
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 40;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 232;
constexpr int THREADS = 128 * CONSUMERS + (MOVES_REGISTERS ? 128 : 32);
static_assert(BLOCK_M % (64 * WARPGROUPS_OF_A_TILE) == 0 && BLOCK_N % 16 == 0, "whole panels of A");
static_assert(SHARED_BYTES <= MOST_SHARED_BYTES, "a block has room for all three");
static_assert(MMAS * BLOCK_N <= 384, "a thread has room for 192 accumulators");

constexpr bool SHARES_A = TCGEMM_SHARES_A;  // the blocks of a cluster; else B
template <Major MAJOR, int ROWS>
constexpr int BOX = MAJOR == Major::K ? ROWS : 64;  // rows of M or N
template <Major MAJOR>
constexpr int B_ROWS = MAJOR == Major::K ? BLOCK_N : 64 * PANELS;  // that are loaded
constexpr int A_BOX = SHARES_A ? BLOCK_M / 2 : BLOCK_M, B_BOX = SHARES_A ? BLOCK_N : BLOCK_N / 2;
// Steps along K that the blocks prefetch into the L2 while the kernel before still runs, each of them
// once: +21 % at 640 cubed, +2 to 3 % at 2048. With 64 x 128 it gains 1 % at 1024 cubed and loses 7
// to 11 % at 128 rows.
constexpr int L2_PREFETCH = BLOCK_M == 64 ? BLOCK_N <= 64 ? 16 : 0 : 2;
// Steps along K that a block loads before its warps have met.
constexpr int AT_ONCE = 2;
// Steps along K up to which threads store a plain C whose rows split sectors of the L2: 10 % faster of
// one, 2 % of two and three. Later TMA's stores pass under the next tile's multiplies.
constexpr int IN_ROWS_STEPS = BLOCK_M > 64 ? 3 : 0;
// The same up to which neighbouring tiles of a C in odd rows overlap.
constexpr int OVERLAP_STEPS = 8;
using Tiles = Schedule<BLOCK_M, BLOCK_N, GROUP_M, SHARES_A>;

}  // namespace
