// What the processes of a run share: one file in memory, which each of them maps.
#pragma once

#include "engine.hpp"

namespace tcgemm::simulator {

// The beginning of the file. Offsets in bytes from there; 0 where there is none.
struct Arena {
  Request request;
  Control control;
  uint64_t bytes;                     // of all
  uint64_t operand_at[NUM_OPERANDS];  // a mapping with the operand between two guards
  uint64_t writers_at;
  uint64_t timeline_path_at;
  uint64_t environment_at, environment_bytes;  // NAME=VALUE, each with a zero after it
};
constexpr uint64_t PAGE = 4096;
constexpr uint64_t ARENA_BYTES = (sizeof(Arena) + PAGE - 1) & ~(PAGE - 1);

// Sets image_low and image_high, and of a process that has touched its thread-local block shared_low
// and shared_high. Whether it has.
bool find_image();

// processes.cpp: in a process of its own, runs the request of that file and ends. Exit status 4: no
// memory, 5: no thread-local storage.
[[noreturn]] void lead(int file);

}  // namespace tcgemm::simulator
