// What mbarriers, bulk copies and wgmma share.
#pragma once

#include "engine.hpp"
#include "hopper.hpp"

namespace tcgemm::simulator {

// The 128-byte swizzle: 16-byte units are exchanged within each 1024 bytes.
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// As if `thread` ran: what it does is its own, wherever the scheduler stands.
template <typename Body>
void as_thread(Thread& thread, Body body) {
  Thread* const running = current;
  current = &thread;
  body();
  current = running;
}

// wgmma.cpp
void wgmma_start_block();
void wgmma_end_thread(const Thread& thread);

}  // namespace tcgemm::simulator
