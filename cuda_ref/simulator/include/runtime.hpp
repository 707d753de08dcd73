// What kernels call and the runtime provides. A CUDA thread is a coroutine; a warp-wide operation
// is a meeting: each lane leaves its arguments and stops, and the last lane to arrive carries the
// operation out for the whole warp, so the result depends on no order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "types.hpp"

namespace tcgemm::simulator {

// Where in the kernel's source an operation was called.
struct Site {
  const char* file;
  int line;
};
#define TCGEMM_HERE                 \
  ::tcgemm::simulator::Site site = { \
    __builtin_FILE(), __builtin_LINE() }

struct Thread;

struct Indices {
  uint3 thread;
};
// The running thread's indices, and its block's. They sit in the library's own data, which the
// checks leave alone.
extern const Indices* current_indices;
extern uint3 block_index;
extern dim3 block_dim, grid_dim;

// Arguments of one lane at a warp-wide operation. `kind` tells operations apart.
enum class Meeting : int32_t {
  sync_warp, shuffle, vote, load_matrix, store_matrix, mma, ldmatrix, mma_ptx,
  custom,
};

void sync_threads(Site site);
// All threads' predicates combined: how many are nonzero.
int sync_threads_count(int predicate, Site site);
// bar.sync id, count: count threads of the block, in whole warps.
void sync_named(int id, int count, Site site);
// bar.arrive id, count: does not wait.
void arrive_named(int id, int count, Site site);
void sync_warp(unsigned mask, Site site);

// Waits until `ready(argument)` is true: the way in for mbarriers and other flags in memory.
void wait_until(bool (*ready)(void*), void* argument, const char* what, Site site);
// Lets the block's other threads run: of one that looks at a flag which another process sets. It
// counts as going on. So with an order in which one warp is late (3), or in a cluster, others may wait
// until it gives up, and a flag that never comes is no deadlock that is told.
void let_others_run(Site site);
// value: 4 or 8 bytes in and out; from_lane: the lane whose value to take (out of range: keep).
void shuffle(unsigned mask, void* value, int bytes, int from_lane, Site site);
unsigned vote(unsigned mask, bool predicate, Site site);
unsigned active_lanes();
int lane_index();
int warp_index();

// Asynchronous copies, 4, 8 or 16 bytes; the data land at the wait.

void copy_async(void* shared, const void* global, int bytes, int source_bytes, bool through_l1,
                Site site);
void copy_async_commit();
// All but the latest `pending` committed groups have landed.
void copy_async_wait(int pending);
void copy_async_wait_all();

enum class Element : int32_t { f16, bf16, tf32, f32, f64, s8, u8, s32, e4m3, e5m2 };
enum class Use : int32_t { a, b, accumulator };

// One fragment type: its use, mma tile and element. A fragment of R x C elements gives each lane
// R * C / 32 of them, none of them twice.
struct FragmentKind {
  Use use;
  int32_t m, n, k;
  Element element;
};

void load_matrix(FragmentKind kind, void* fragment, const void* matrix, unsigned ld, bool column,
                 Site site);
void store_matrix(FragmentKind kind, const void* fragment, void* matrix, unsigned ld, bool column,
                  Site site);
void mma(FragmentKind a_kind, FragmentKind accumulator_kind, Element out, void* d, const void* a,
         const void* b, const void* c, Site site);

// ldmatrix.x1/.x2/.x4: lane i of the first 8 * count gives the address of one 16-byte row.
void ldmatrix(uint32_t* registers, const void* row, int count, bool transpose, Site site);
// mma.sync.m16n8kK.row.col: registers laid out as the PTX manual draws them.
void mma_ptx(int k, Element in, Element accumulator, Element b_in, void* d, const void* a,
             const void* b, const void* c, Site site);

// 32-bit addresses of shared memory, as __cvta_generic_to_shared gives.
uint32_t shared_address(const void* pointer);
void* shared_pointer(uint32_t address);

// The block's dynamic shared memory, at most MAX_SHARED bytes.
constexpr size_t MAX_SHARED = 227 * 1024;
unsigned char* dynamic_shared_memory();

// Atomics (blocks of one launch may run in several processes).

// Tells the checks of an atomic access, which races with no other atomic one.
void note_atomic(void* address, int bytes, const void* pc);

// *address = update(*address), atomically; what was there before.
template <typename T, typename Update>
__attribute__((no_sanitize("thread"), noinline)) T atomic_update(T* address, Update update) {
  note_atomic(address, sizeof(T),
              __builtin_extract_return_addr(__builtin_return_address(0)));
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  Bits* cell = reinterpret_cast<Bits*>(address);
  Bits old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(cell, &old, bits_as<Bits>(static_cast<T>(update(bits_as<T>(old)))),
                                      true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return bits_as<T>(old);
}

constexpr int MAX_CLUSTER = 8;  // blocks

struct Launch {
  void (*invoke)(const void* kernel, void* params);
  const void* kernel;
  void* params;
  size_t params_bytes;
  dim3 grid, block;
  size_t shared_bytes;
  unsigned cluster;  // blocks of each cluster, along x; 0: as the kernel declares
};
// What a kernel's __cluster_dims__ say; clusters lie along x. Of one that does not, the extents with
// the highest bit, which no launch takes and ../clusters.py reads.
constexpr unsigned cluster_of(unsigned x, unsigned y = 1, unsigned z = 1) {
  return y == 1 && z == 1 ? x : 1u << 31 | z << 20 | y << 10 | x;
}
int run_grid(const Launch& launch);

}  // namespace tcgemm::simulator
