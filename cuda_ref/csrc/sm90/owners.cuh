// How tiles of a partial sum come to their owners: by TMA, and the flag behind them.
#pragma once

#include "sm90/epilogue_tma.cuh"
#include "sm90/peers.cuh"
#include "sm90/tensor_map.cuh"

namespace tcgemm::sm90 {

// This rank's part of every owner's slot, for TMA; a gather has none.
template <bool SCATTERS>
struct Owners {
  CUtensorMap maps[SCATTERS ? MOST_OWNERS : 1];
};

inline int describe(const Gemm& gemm, const Peers& peers, int N, Owners<true>* owners) {
  const int64_t part_of_slot = int64_t{peers.chunk} * N * bytes_of(gemm.out);
  if (peers.world > MOST_OWNERS) return cudaErrorNotSupported;
  for (int owner = 0; owner < peers.world; ++owner) {
    const int rows = peers.rows_of(gemm.a.rows, owner);
    if (owner == peers.rank || rows == 0) continue;
    char* const at = static_cast<char*>(peers.slot_of[owner]) + peers.rank * part_of_slot;
    if (output_map({at, rows, N, N, 1}, gemm.out, CHUNK_ROWS, &owners->maps[owner]).data != nullptr)
      return cudaErrorNotSupported;
  }
  return cudaSuccess;
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
