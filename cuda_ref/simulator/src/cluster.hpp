// What each block of a cluster has of its own, and which of them runs.
//
// A kernel's __shared__ arrays lie at one address of the process. So the blocks of a cluster take
// turns: the running one has its shared memory there, that of the others is kept in images, and who
// reaches into another block's reaches into its image.
#pragma once

#include <memory>

#include "runtime.hpp"

namespace tcgemm::simulator {

extern int cluster_size;  // blocks of each cluster of the launch
extern int rank_now;      // the running block's rank in its cluster

// One of each block of a cluster; the first one's is there from the start.
template <typename T>
class PerBlock {
  T first_{};
  std::unique_ptr<T> others_[MAX_CLUSTER - 1];

  __attribute__((noinline, cold)) T& other(int rank) {
    std::unique_ptr<T>& other = others_[rank - 1];
    if (!other) other.reset(new T{});
    return *other;
  }

 public:
  T& of(int rank) { return rank == 0 ? first_ : other(rank); }
  T& now() { return of(rank_now); }
};

struct Block {
  uint3 index;
  uint64_t number;
  int alive;  // threads that have not returned
};
extern Block blocks[MAX_CLUSTER];
extern Block* block;  // the running one

// Makes the block the running one: its shared memory takes its place, its threads are `threads`.
void enter_block(int rank);
// A block's shared memory: in its place where it runs, else its image. Offsets are the same in all.
char* shared_of(int rank);

// cluster.cpp: the barrier of all threads of a cluster.
void start_cluster_barrier();
void leave_cluster();  // the running thread has returned

}  // namespace tcgemm::simulator
