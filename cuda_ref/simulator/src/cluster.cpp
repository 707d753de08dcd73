// The blocks of a cluster: whose turn it is, where the others' shared memory is, and the barrier at
// which all of their threads meet.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "engine.hpp"
#include "hopper.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {

int cluster_size = 1, rank_now;
Block blocks[MAX_CLUSTER];
Block* block = blocks;
PerBlock<Threads> threads_of;
PerBlock<Warps> warps_of;
Thread* threads = threads_of.of(0).data();
Warp* warps = warps_of.of(0).data();
uint64_t block_number;

namespace {

// The shared memory of a block that does not run. Pages are taken as they are touched.
char* image_of(int rank) {
  static char* images[MAX_CLUSTER];
  if (!images[rank]) {
    void* const image = mmap(nullptr, static_cast<size_t>(shared_high - shared_low),
                             PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);
    if (image == MAP_FAILED) std::abort();
    images[rank] = static_cast<char*>(image);
  }
  return images[rank];
}

// What the kernel may use of a block's shared memory; of its dynamic part what was asked for.
void copy_shared(char* to, const char* from) {
  const size_t dynamic =
      static_cast<size_t>(reinterpret_cast<char*>(tcgemm_dynamic_shared) - shared_low);
  const size_t after = dynamic + MAX_SHARED, all = static_cast<size_t>(shared_high - shared_low);
  std::memcpy(to, from, dynamic + dynamic_shared_bytes);
  std::memcpy(to + after, from + after, all - after);
}

// One phase after the other; who waits for one cannot arrive for the next but one.
struct ClusterBarrier {
  uint32_t phase;
  int arrived;
  struct {
    Clocks clocks;
    uint64_t last;  // timeline.cpp: when the last one arrived
  } of_phase[2];
} cluster_barrier;

void complete_phase() {
  ClusterBarrier& b = cluster_barrier;
  int alive = 0;
  for (int rank = 0; rank < cluster_size; ++rank) alive += blocks[rank].alive;
  if (b.arrived == 0 || b.arrived < alive) return;
  b.arrived = 0;
  ++b.phase;
  if constexpr (OBSERVE) {
    worker->counters.barriers += static_cast<uint64_t>(cluster_size);
    auto& next = b.of_phase[b.phase & 1];
    observe::forget(next.clocks);
    next.last = 0;
  }
}

bool phase_over(void* phase) { return cluster_barrier.phase != *static_cast<uint32_t*>(phase); }

}  // namespace

void enter_block(int rank) {
  if (rank != rank_now) {
    copy_shared(image_of(rank_now), shared_low);
    copy_shared(shared_low, image_of(rank));
    rank_now = rank;
    if constexpr (OBSERVE) observe::enter_block();
  }
  block = &blocks[rank];
  threads = threads_of.of(rank).data();
  warps = warps_of.of(rank).data();
  block_number = block->number;
  block_index = block->index;
  worker->block[0] = block_index.x;
  worker->block[1] = block_index.y;
  worker->block[2] = block_index.z;
}

char* shared_of(int rank) { return rank == rank_now ? shared_low : image_of(rank); }

void start_cluster_barrier() {
  cluster_barrier.phase = 0;
  cluster_barrier.arrived = 0;
  for (auto& phase : cluster_barrier.of_phase) {
    if constexpr (OBSERVE) observe::forget(phase.clocks);
    phase.last = 0;
  }
}

void leave_cluster() {
  ClusterBarrier& b = cluster_barrier;
  if (current->arrived && current->arrived_phase == b.phase) --b.arrived;
  complete_phase();
}

uint32_t cluster_rank() { return static_cast<uint32_t>(rank_now); }

__attribute__((noinline)) void cluster_arrive(bool release, Site site) {
  Thread& t = *current;
  ClusterBarrier& b = cluster_barrier;
  if (t.arrived) {
    report_misuse(Misuse::cluster_barrier, CALLER, site, 1);
    abandon_block();
  }
  t.arrived = true;
  t.arrived_phase = b.phase;
  if constexpr (OBSERVE) {
    auto& phase = b.of_phase[b.phase & 1];
    observe::release(t, phase.clocks, release);
    phase.last = std::max(phase.last, observe::clock_of(t.warp));
  }
  ++b.arrived;
  complete_phase();
}

__attribute__((noinline)) void cluster_wait(Site site) {
  Thread& t = *current;
  if (!t.arrived) {
    report_misuse(Misuse::cluster_barrier, CALLER, site, 0);
    abandon_block();
  }
  wait_until(phase_over, &t.arrived_phase, "cluster barrier", site);
  t.arrived = false;
  if constexpr (OBSERVE) {
    const auto& phase = cluster_barrier.of_phase[t.arrived_phase & 1];
    observe::acquire(t, phase.clocks);
    observe::waits(t.warp, observe::Phase::wait_barrier, phase.last, site.line);
  }
}

}  // namespace tcgemm::simulator
