// What the parts of the engine share: fibers.cpp runs a cluster's threads, cluster.cpp has what its
// blocks share, collectives.cpp what a block's threads do together, copies.cpp what cp.async leaves to
// do, operands.cpp the memory, findings.cpp what is reported, processes.cpp the processes that share a
// grid's blocks, run.cpp what is before and after them.
#pragma once

#include "internal.hpp"

// Where the function that says CALLER was called from; such a function is never inlined.
#define CALLER relative_pc(__builtin_extract_return_addr(__builtin_return_address(0)))

namespace tcgemm::simulator {

// fibers.cpp

extern const Launch* launch_now;
extern bool abandoned;  // the cluster is left before its end

void yield_thread();  // from a thread: lets the scheduler run others
// Stacks for all threads of a cluster; the lowest page of each that is used is out of bounds.
void prepare_stacks();
// Takes clusters from the counter that all processes of the run share, until there is none.
void run_blocks();
inline Thread* lanes_of(int warp) { return &threads[warp * 32]; }

// collectives.cpp

void start_block_barriers();
void leave_block();  // the running thread has returned: those who wait at the barrier may go on

// copies.cpp

void land(Thread& t, size_t count);  // the thread's oldest copies

// operands.cpp

// Its strides and sizes, without a place.
void describe_operand(Operand& o, const OperandRequest& from);
// In a mapping: elements at the same address modulo 256 as the caller has them, between guards.
void place_operand(Operand& o, const OperandRequest& from, char* map);
// Copies the elements there, with NaN in the guards, and between rows where the view is not far larger
// than its elements.
void fill_operand(const Operand& o, const OperandRequest& from);
// Copies the operand's elements, and nothing between them, from one place to another.
void copy_elements(const Operand& o, char* to, const char* from);
// Memory that the workers share, all ones at first: NaN to who reads what was not written.
void* lend(size_t bytes, void*);
// C_in may be C itself, and is then read where C is written.
bool c_in_is_c();

// findings.cpp

void add_finding(Result& result, const Finding& finding);
void collect(Result& result);  // what all workers found and counted

}  // namespace tcgemm::simulator
