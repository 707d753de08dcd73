// Tiles of a partial sum on their way to their owners, and the flag behind them.
//
// A slot holds whole tiles, for each peer those of a rank in the order of their flags. A
// warpgroup's part of a tile lies in the order of its threads' accumulators: eight of a thread, 16
// bytes of Out, beside those of the next thread. So it is contiguous on the link, and the owner's
// same thread reads what it adds by loads of 512 bytes a warp. What lies past the owner's rows, or
// past N, is of no meaning: it is added to accumulators that are not stored.
#pragma once

#include "sm90/epilogue_tma.cuh"
#include "sm90/peers.cuh"

namespace tcgemm::sm90 {

constexpr uint32_t UNIT_BYTES = 128 * 16;  // eight accumulators of each thread of a warpgroup

// Parts of tiles that a rank sends an owner: as many as there are flags.
template <int BLOCK_M, int PARTS>
__device__ inline int parts_of_a_rank(const Peers& peers, int cols) {
  return (peers.chunk + BLOCK_M - 1) / BLOCK_M * cols * PARTS;
}

// Sends a warpgroup's accumulators as Out to a peer's `to`, chunk after chunk through BUFFERS x
// CHUNK_BYTES of shared memory at `chunks`, which are free. Row m and column n are the corner's
// among the owner's rows[.., N]: chunks that lie outside are left out. `group`: a barrier of the
// warpgroup; its `elected` thread owns the stores.
template <typename Out, int BUFFERS, int MMAS, int REGISTERS>
__device__ __forceinline__ void send_tile(char* to, uint32_t chunks, uint32_t group, bool elected,
                                          const float (&d)[MMAS][REGISTERS], int m, int n, int rows,
                                          int N) {
  constexpr int STEP = CHUNK_REGISTERS<Out>, ALL = MMAS * REGISTERS;
  static_assert(sizeof(Out) == 2 && (MMAS == 1 || REGISTERS % STEP == 0), "chunks of 64 rows");
#pragma unroll
  for (int first = 0; first < ALL; first += STEP) {
    const int number = first / STEP, count = ALL - first < STEP ? ALL - first : STEP;
    const uint32_t chunk = chunks + number % BUFFERS * CHUNK_BYTES;
    if (number >= BUFFERS) {
      if (elected) cp_async_bulk_wait_group_read<BUFFERS - 1>();
      bar_sync(group, 128);
    }
#pragma unroll
    for (int i = 0; i < count; i += 8) {
      const float* x = d[first / REGISTERS] + first % REGISTERS + i;
      st_shared_v4(chunk + i / 8 * UNIT_BYTES + threadIdx.x % 128 * 16,
                   make_uint4(pack<Out>(x[0], x[1]), pack<Out>(x[2], x[3]), pack<Out>(x[4], x[5]),
                              pack<Out>(x[6], x[7])));
    }
    fence_proxy_async();
    bar_sync(group, 128);
    if (elected) {
      if (m + first / REGISTERS * 64 < rows && n + first % REGISTERS * 2 < N)
        cp_async_bulk_global(to + number * CHUNK_BYTES, chunk, count / 8 * UNIT_BYTES);
      cp_async_bulk_commit_group();
    }
  }
}

// d += the peers' partial sums of a warpgroup's part of a tile, in the order of ranks. `part`: its
// number among the parts_of_a_rank.
template <typename Out, int MMAS, int REGISTERS>
__device__ __forceinline__ void add_peers(float (&d)[MMAS][REGISTERS], const Peers& peers, int part,
                                          int parts) {
  constexpr int UNITS = MMAS * REGISTERS / 8;
  for (int source = 0; source < peers.world; ++source) {
    if (source == peers.rank) continue;
    const uint4* from = static_cast<const uint4*>(peers.slot) +
                        (int64_t{source} * parts + part) * UNITS * 128 + threadIdx.x % 128;
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit) {
      union {
        uint4 words;
        Out elements[8];
      } eight;
      eight.words = ld_global_v4(from + unit * 128);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        d[unit * 8 / REGISTERS][unit * 8 % REGISTERS + i] += widen<float>(eight.elements[i]);
    }
  }
}

// The tile of a partial sum that was last sent to its owner, who is not told of it yet.
template <typename Spot>
struct Sent {
  int32_t* flag = nullptr;  // there
  Spot spot;

  __device__ void keep(const Spot& of, const Peers& peers, int number) {
    flag = peers.words[of.owner] + peers.flags_at + peers.rank * peers.most + number;
    spot = of;
  }

  // By the thread that has asked for the stores: once they have arrived, sets the flag.
  __device__ void tell(const Peers& peers, int32_t now) {
    if (flag == nullptr) return;
    cp_async_bulk_wait_all();
    stamp<true>(spot, peers, Stamp::stored);
    st_release_sys(flag, now);
    stamp<true>(spot, peers, Stamp::flagged);
    flag = nullptr;
  }
};

}  // namespace tcgemm::sm90
