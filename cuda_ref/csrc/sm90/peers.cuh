// What a kernel knows of the other ranks of its group, how it waits for them and tells them, and how
// a call begins. docs/lab/several_gpus_protocol.md has the protocol.
#pragma once

#include <algorithm>

#include "ptx/system.cuh"
#include "sm90/tile.cuh"
#include "tile/order.cuh"

namespace tcgemm::sm90 {

enum class Step : int32_t { enter, gather, scatter };

// One call on one rank. cuda_ref/overlap/run.py has the same fields in the same order.
struct Peers {
  Step step;
  int32_t rank, world;
  int32_t chunk;       // rows of a rank, of all but the last ones
  int32_t part_tiles;  // gather: rows of clusters' tiles that share a flag
  int32_t most;        // flags for each rank
  int32_t flags_at;    // where they begin in a rank's words
  int32_t limit;       // looks at a flag, after which a wait is given up
  int32_t debug;       // then: go on, and say in `trouble` what was missing
  int32_t spare_sms;   // that a grid leaves free
  int32_t turn;        // scatter: clusters' tiles of an owner before the next one's; 0: all
  int32_t lag;         // turns that own tiles come behind
  int32_t done_at;     // where `done` begins in a rank's words
  int32_t cluster;     // blocks that share B, 1 or 2: their tiles lie one above the other
  int32_t begins;      // whether the product begins the call, and no `enter` before it
  const int32_t* flags;  // here; they hold the epoch of the call that set them
  const int32_t* done;   // here: the last call that each peer has ended
  int32_t* epoch;        // calls so far, this rank's own count
  int32_t* last;         // the last of them that used the slot
  int32_t* count;        // blocks that have begun a call, this rank's own; 0 between calls
  int32_t* trouble;      // 1, rank, part and epoch of a wait that was given up
  void* slot;            // here: gathered rows of A, or the peers' partial sums
  int32_t* const* words;  // every rank's
  char* const* slots;     // every rank's
  int64_t* stamps;        // clock stamps, of a build with TCGEMM_STAMPS

  __host__ __device__ int rows_of(int64_t M, int of) const {
    const int64_t left = M - static_cast<int64_t>(of) * chunk;
    return static_cast<int>(left < 0 ? 0 : left < chunk ? left : chunk);
  }
};

// What a build with TCGEMM_STAMPS writes down of a call: the begin and the end of its first kernel,
// and behind them for each block and each piece of its work, in the order in which a rank
// comes to it, when it came there, when it had seen the flag that it waits for, when its last tile
// was stored, and when its last flag was set. A piece is a part of a rank's rows (gather), or the
// tiles of an owner (scatter). Where owners take turns, their pieces overlap, and of a piece's waits
// the first one counts.
#ifdef TCGEMM_STAMPS
constexpr bool STAMPS = true;
#else
constexpr bool STAMPS = false;
#endif
enum class Stamp { came, seen, stored, flagged };
constexpr int CALL_STAMPS = 2;

__device__ inline void stamp_call(const Peers& peers, int number) {
  if constexpr (STAMPS) peers.stamps[number] = globaltimer();
}

// Waits until a flag holds the epoch, or where `at_least` a later one. By one thread: what others of
// the block read is theirs to read behind a barrier.
__device__ inline void wait_for(const int32_t* flag, int32_t now, bool at_least, const Peers& peers,
                                int source, int part) {
  for (int looks = 0; looks <= peers.limit; ++looks) {
    const int32_t seen = ld_acquire_sys(flag);
    if (seen == now || (at_least && seen - now > 0)) return;
  }
  if (!peers.debug) trap();
  peers.trouble[1] = source;
  peers.trouble[2] = part;
  peers.trouble[3] = now;
  peers.trouble[0] = 1;
}

// Tells the peers that so many calls have ended here. A thread a peer.
__device__ inline void tell_done(const Peers& peers, int32_t calls, int lane) {
  for (int peer = lane; peer < peers.world; peer += 32)
    if (peer != peers.rank) st_release_sys(peers.words[peer] + peers.done_at + peers.rank, calls);
}

// Waits until every peer has ended the call `before`. A peer without rows may have ended this one
// as well by now. A thread a peer.
__device__ inline void wait_for_done(const Peers& peers, int32_t before, int lane) {
  for (int peer = lane; peer < peers.world; peer += 32)
    if (peer != peers.rank) wait_for(peers.done + peer, before, true, peers, peer, -1);
}

// Begins a call: tells the peers that those before have ended here, waits until every peer has ended
// the call that used the slot last, and counts this one. A thread a peer.
__global__ void enter(Peers peers) {
  const int lane = threadIdx.x;
  if (lane == 0) stamp_call(peers, 0);
  const int32_t calls = *peers.epoch, before = *peers.last;
  tell_done(peers, calls, lane);
  wait_for_done(peers, before, lane);
  __syncwarp();
  if (lane > 0) return;
  *peers.last = calls + 1;
  *peers.epoch = calls + 1;
  stamp_call(peers, 1);
}

// The same, by a warp of each block of a product that begins its call, whose number is `now`. The
// first block tells the peers. Behind it the warp has seen that they are done with the slot. Hazard:
// all threads of the block have read how many calls there were, before a barrier.
__device__ inline void begin_call(const Peers& peers, int32_t now, int lane) {
  const bool tells = blockIdx.x == 0;
  if (tells && lane == 0) stamp_call(peers, 0);
  const int32_t before = *peers.last;
  if (tells) tell_done(peers, now - 1, lane);
  wait_for_done(peers, before, lane);
  __syncwarp();
  if (lane > 0) return;
  if (tells) stamp_call(peers, 1);
  // The last one counts the call, for all have read the count before.
  if (atom_inc_acq_rel_gpu(peers.count) != static_cast<int>(gridDim.x) - 1) return;
  *peers.count = 0;
  *peers.last = now;
  *peers.epoch = now;
}

// By all threads of a cluster, if it has more than one block.
__device__ inline void sync_cluster(int blocks) {
  if (blocks == 1) return;
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

template <int BLOCK_M>
struct RankSpot {
  int owner;  // of the rows
  int rows;   // that it has
  int part, m, tile_n;  // m: within its rows
  int turn;             // of the owner in the order

  // The flag of a tile of a partial sum.
  __device__ int number(int cols) const { return m / BLOCK_M * cols + tile_n; }
  // Not so the second tile of a cluster past an odd row of tiles.
  __device__ bool is_there() const { return m < rows; }
};

// The tiles of all ranks' rows in the order in which a rank visits them. No tile spans two ranks.
// Clusters walk together: they count their tiles, `height` rows high, as one.
//
// To gather: its own, then those of rank - 1, rank - 2, ..., as their rows arrive, a part at a time.
// To scatter: those of rank + 1, rank + 2, ..., and its own last. Or, where all ranks have as many
// tiles, in turns: so many tiles of each of these, and as many own ones of `lag` turns before, whose
// partial sums have come meanwhile. Then the link is busy to the end. All ranks take the same turns:
// a tile that an own one waits for has a lower number in its sender's order, so no circle can close.
template <int BLOCK_M, int GROUP_M, bool SCATTERS>
struct RankOrder {
  using Spot = RankSpot<BLOCK_M>;
  int64_t M;
  int cols;  // of tiles
  int turn;
  int height;

  __host__ __device__ int tiles_of(const Peers& peers, int owner) const {
    return (peers.rows_of(M, owner) + height - 1) / height * cols;
  }

  int64_t tiles(const Peers& peers) const {
    int64_t sum = 0;
    for (int owner = 0; owner < peers.world; ++owner) sum += tiles_of(peers, owner);
    return sum;
  }

  // Of `index` in the order of turns: whose tile it is, counted from rank + 1 on, own ones last, and
  // its number among that owner's.
  __device__ int2 in_turns(int index, const Peers& peers) const {
    const int each = tiles_of(peers, 0), others = peers.world - 1, last = (each - 1) / turn;
    const int rest = each - last * turn;  // tiles of the last turn
    const int first = others * min(peers.lag * turn, each);  // tiles before the first own one
    int q = index / (others * turn);
    if (index >= first) {
      index -= first;
      if (peers.lag > last) return {others, index};
      q = min(peers.lag + index / (peers.world * turn), last);
      index -= (q - peers.lag) * peers.world * turn;
      const int sent = others * (q < last ? turn : rest);
      if (index >= sent) return {others, (q - peers.lag) * turn + index - sent};
    } else {
      index -= q * others * turn;
    }
    const int size = q < last ? turn : rest;
    return {index / size, q * turn + index % size};
  }

  // The tile of a cluster's block `rank`.
  __device__ Spot locate(int index, int rank, const Peers& peers) const {
    Spot spot = of_cluster(index, peers);
    spot.m += rank * BLOCK_M;
    return spot;
  }

  __device__ Spot of_cluster(int index, const Peers& peers) const {
    const int together = GROUP_M * BLOCK_M / height;
    if (SCATTERS && turn > 0) {
      const int2 at = in_turns(index, peers);
      int owner = peers.rank + 1 + at.x;
      if (owner >= peers.world) owner -= peers.world;
      const int rows = peers.rows_of(M, owner);
      // Groups of all ranks run together, and read the same columns of B.
      const int group_m = together / peers.world > 0 ? together / peers.world : 1;
      const Tile tile = grouped_tile<GROUP_M>(at.y, (rows + height - 1) / height, cols, group_m);
      return {owner, rows, 0, tile.m * height, tile.n, at.x};
    }
    int owner = SCATTERS ? peers.rank + 1 : peers.rank, turn = 0;
    if (owner == peers.world) owner = 0;
    for (int count = tiles_of(peers, owner); index >= count; count = tiles_of(peers, owner)) {
      index -= count;
      ++turn;
      if (SCATTERS)
        owner = owner + 1 == peers.world ? 0 : owner + 1;
      else
        owner = owner == 0 ? peers.world - 1 : owner - 1;
    }
    const int rows = peers.rows_of(M, owner), tile_rows = (rows + height - 1) / height;
    const int part_tiles = SCATTERS ? tile_rows : peers.part_tiles;
    const int part = index / (part_tiles * cols), first = part * part_tiles;
    const int here = tile_rows - first < part_tiles ? tile_rows - first : part_tiles;
    const Tile tile = grouped_tile<GROUP_M>(index - first * cols, here, cols, together);
    return {owner, rows, part, (first + tile.m) * height, tile.n, turn};
  }
};

// Own rows to gather count as one part.
template <bool SCATTERS, typename Spot>
__device__ inline int piece_of(const Spot& spot, const Peers& peers) {
  return SCATTERS ? spot.turn : spot.turn == 0 ? 0 : spot.turn * peers.most + spot.part;
}

template <bool SCATTERS, typename Spot>
__device__ inline void stamp(const Spot& spot, const Peers& peers, Stamp what) {
  if constexpr (STAMPS) {
    const int pieces = SCATTERS ? peers.world : peers.world * peers.most;
    const int at = (blockIdx.x * pieces + piece_of<SCATTERS>(spot, peers)) * 4;
    int64_t& moment = peers.stamps[CALL_STAMPS + at + static_cast<int>(what)];
    // Of waits for each tile it is the first that counts.
    if (moment == 0 || what == Stamp::stored || what == Stamp::flagged) moment = globaltimer();
  }
}

// A producer's wait for rows of A: before its first tile of a part that a peer sends.
struct Arrivals {
  int here = -1;  // the flag that was waited for last

  // Whether the tile's rows are this rank's, and are read where they lie.
  template <bool SCATTERS, typename Spot>
  __device__ bool wait(const Spot& spot, const Peers& peers, int32_t now) {
    const bool is_own = !SCATTERS && spot.owner == peers.rank;
    if (SCATTERS && spot.owner == peers.rank) return false;  // its stamps are those of its sums
    const int flag = spot.owner * peers.most + spot.part;
    if (STAMPS && flag != here) stamp<SCATTERS>(spot, peers, Stamp::came);
    if (!SCATTERS && !is_own && flag != here) {
      wait_for(peers.flags + flag, now, false, peers, spot.owner, spot.part);
      fence_proxy_async_global();
    }
    if (STAMPS && flag != here) stamp<SCATTERS>(spot, peers, Stamp::seen);
    here = flag;
    return is_own;
  }
};

// By one thread, before a barrier: the peers' partial sums of an own tile are here.
template <bool SCATTERS, typename Spot>
__device__ inline void wait_for_tiles(const Spot& spot, const Peers& peers, int flag, int32_t now) {
  stamp<SCATTERS>(spot, peers, Stamp::came);
  for (int source = 0; source < peers.world; ++source)
    if (source != peers.rank)
      wait_for(peers.flags + source * peers.most + flag, now, false, peers, source, flag);
  stamp<SCATTERS>(spot, peers, Stamp::seen);
}

}  // namespace tcgemm::sm90
