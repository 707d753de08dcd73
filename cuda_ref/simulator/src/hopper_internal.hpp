// What mbarriers, bulk copies and wgmma share.
#pragma once

#include "engine.hpp"
#include "hopper.hpp"

namespace tcgemm::simulator {

// The 128-byte swizzle: 16-byte units are exchanged within each 1024 bytes.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

constexpr uint32_t ROW_BYTES = 128;  // of a box in shared memory, as wide as the swizzle

// Calls body(offset in shared memory) for each 16 bytes of a box.
template <typename Body>
void each_unit(const CUtensorMap& map, Body body) {
  for (uint32_t row = 0; row < map.box_outer; ++row)
    for (uint32_t at = 0; at < map.box_inner * map.item_bytes; at += 16)
      body(row * ROW_BYTES + at);
}

// The first element of matrix `batch` of a tensor.
inline char* matrix_of(const CUtensorMap& map, int batch) {
  return static_cast<char*>(map.data) +
         static_cast<int64_t>(batch) * static_cast<int64_t>(map.batch_pitch_bytes);
}

// As if `thread` ran: what it does is its own, wherever the scheduler stands.
template <typename Body>
void as_thread(Thread& thread, Body body) {
  Thread* const running = current;
  current = &thread;
  body();
  current = running;
}

// bulk_stores.cpp
void stores_start_block();
void stores_end_thread(const Thread& thread);

// wgmma.cpp
void wgmma_start_block();
void wgmma_end_thread(const Thread& thread);

}  // namespace tcgemm::simulator
