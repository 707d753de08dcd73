// What the parts of the observation share. Only the observed build has them: addresses.cpp says what
// an address is, races.cpp orders accesses to shared memory, clocks.cpp has the order, requests.cpp counts, l2.cpp models the
// L2, accesses.cpp takes in what the kernel does, timeline.cpp says
// when, hooks.cpp is called by the compiled code.
#pragma once

#include <algorithm>

#include "internal.hpp"

namespace tcgemm::simulator {
namespace observe {

// addresses.cpp

int64_t floor_div(int64_t a, int64_t b);
// The element at `offset` elements from the operand's first, and whether the view holds it. Rows
// count on from matrix to matrix of a batch.
bool locate(const Operand& o, int64_t offset, int64_t* row, int64_t* col);
// The number of the operand in whose mapping the address lies, or -1.
int operand_at(const char* address);
bool in_shared(const char* address);
// Whether this is memory that is neither checked nor counted: the running thread's own, the
// library's variables, the threads' indices, the kernel's parameters, scratch.
bool is_known(const char* address);
// Whether this is a guard that g++ sets beside a __shared__ array of class type.
bool is_guard(const char* address);
// Checks that a shared access lies in what the block asked for.
bool shared_exists(char* address, int bytes, bool write, uint64_t pc);
void check_global(int operand, char* address, int bytes, bool write, uint64_t pc,
                  bool atomic = false);
void misaligned(uint64_t pc, int operand, const char* address, int bytes, bool write);
// Reports an address of nothing and leaves the block.
[[noreturn]] void wild(char* address, int bytes, bool write, uint64_t pc);
// A new finding about shared memory, or null where the same one was reported before.
Finding* shared_finding(Kind kind, uint64_t pc, const char* address, int bytes, bool write);
int64_t elements_of_c();

// races.cpp

void start_races();        // once a launch
void start_block_races();  // once a block
void enter_block_races();
void check_shared(Thread& t, char* address, int bytes, bool write, uint64_t pc,
                  bool atomic = false);
// That what lies there was fenced since a thread wrote it, before hardware reads it that does not see
// threads' writes by itself.
void check_proxy(const Thread& reader, const char* address, Misuse what, Site site, uint64_t pc);
// From now on the bytes are an asynchronous copy's of the running thread, until it lands.
void mark_in_flight(const char* to, int bytes, uint64_t pc);

// requests.cpp

struct Entry {
  uint64_t address;
  uint64_t from;  // what an asynchronous copy to `address` reads, 0 where it reads nothing
  uint32_t pc;
  uint8_t bytes, space, lane;  // space: the operand, or SHARED
  bool write;
  enum : uint8_t { access, copy, copy_through_l1, commit, await } kind;  // the last two: marks
  uint8_t read;  // bytes that a copy reads; it fills up with zeros
};
constexpr uint8_t SHARED = NUM_OPERANDS;

void start_block_requests();
Entry* keep(const Thread& t, char* address, int bytes, bool write, uint8_t space, uint64_t pc);
// Keeps an access until its warp converges. Null where nothing is counted, else what was kept.
inline Entry* log(const Thread& t, char* address, int bytes, bool write, uint8_t space,
                  uint64_t pc) {
  return request.count && bytes ? keep(t, address, bytes, write, space, pc) : nullptr;
}
// Counts one request of a warp.
void serve(int warp, const Entry* const* entries, int count);

// l2.cpp

void start_traces();
void start_block_trace();
void end_block_trace();
void trace(uint64_t sector, bool write);
void model_launch();
void flush_l2();  // at the end of the run: what is dirty is written to memory

// timeline.cpp

void start_launch_timeline();
void start_block_timeline();
void enter_block_timeline();
void end_block_timeline();
void request_passes(int warp, const Entry& first);
bool timeline_runs();  // of the running block

}  // namespace observe
}  // namespace tcgemm::simulator
