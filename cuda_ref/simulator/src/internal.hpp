// State shared by the parts of the runtime: the engine (engine.hpp: threads, barriers, processes),
// tensor.cpp (fragments and their products), hopper.cpp, and the observation (observe.hpp: checks
// and counts; in the observed build only).
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cluster.hpp"
#include "runtime.hpp"

#ifdef TCGEMM_OBSERVE
constexpr bool OBSERVE = true;
#else
constexpr bool OBSERVE = false;
#endif

namespace tcgemm::simulator {

constexpr int MAX_THREADS = 1024;
constexpr int MAX_WARPS = MAX_THREADS / 32;
constexpr int MAX_CLUSTER_WARPS = MAX_CLUSTER * MAX_WARPS;
constexpr int MAX_WORKERS = 64;
constexpr int MAX_FINDINGS = 24;
constexpr int MAX_MMA_KINDS = 12;
constexpr int MAX_GUARDS = 62;
constexpr int PLAN_FIELDS = 11;
constexpr int MAX_FRAMES = 12;
constexpr int NUM_OPERANDS = 7;  // A, B, C, C_in, bias, scale_a, scale_b; those after C may be none
constexpr int C_OPERAND = 2;
constexpr int C_IN_OPERAND = 3;
constexpr int BIAS_OPERAND = 4;

// What Python passes and reads: plain C layout, mirrored by ctypes in abi.py.

struct OperandRequest {
  void* data;  // null where there is none
  int64_t rows, cols, row_stride, col_stride;
  int64_t batches, batch_stride;
  int32_t item_bytes, unused;
};

struct Request {
  OperandRequest operands[NUM_OPERANDS];
  double alpha, beta;
  int32_t activation, aux, compute, mma_m, mma_n;
  int32_t dtype_in, dtype_out;
  int32_t order;  // 0 forward, 1 reverse, 2 random, 3 late: warp `seed` only where no other can go on
  int32_t check, count, workers;
  uint64_t seed;
  double timeout_s;
  int32_t sms, threads_per_sm;
  int64_t shared_per_sm, l2_bytes;
  int64_t shared_static;  // bytes of the kernel's own __shared__ arrays
  int32_t* writers;       // where to leave, per element of C, 1 + the block that wrote it; or null
  // Offsets in the thread-local block of the guards that g++ sets beside arrays of class type.
  int32_t guard_count;
  int32_t writes_bias;  // the bias is a result, as C is: of column sums
  int32_t writes_c_in;  // or what is in its place: a pre-activation
  int32_t guards[MAX_GUARDS];
  int32_t plan[PLAN_FIELDS];  // tcgemm::Plan
  const char* timeline_path;  // where to write what each warp does when (timeline.cpp), or null
  int64_t timeline_latency;   // ticks from asking global memory to having the data
  int64_t timeline_blocks;    // how many blocks of each launch are written
  const char* environment;    // of the kernel's process: NAME=VALUE, each with a zero after it
  int64_t environment_bytes;
};

enum class Kind : int32_t {
  none, out_of_bounds, misaligned, uninitialised, race, async_in_flight, not_written, written_twice,
  writes_input, wild, shared_bounds, divergent_barrier, exited_before_barrier, divergent_warp,
  deadlock, crash, timeout, not_awaited, reads_other, misuse,
};

// In the order of MISUSES in ../findings.py.
enum class Misuse : int32_t {
  shuffle_source, barrier_number, barrier_warps, barrier_counts, copy_size, no_mbarrier, box_address,
  wgmma_proxy, store_proxy, wgmma_fence, stack, copy_source, cluster_rank, cluster_mbarrier,
  cluster_exit, cluster_barrier, bulk_copy, copy_proxy, clocks,
};

struct Position {
  uint32_t block[3], thread[3];
};

struct Finding {
  Kind kind;
  int32_t operand;  // its number, -1 none
  int32_t write, bytes, signal;
  int32_t has_other, other_write, other_sends;  // other_sends: by a copy that has not ended
  Position at, other;
  uint32_t has_owner, owner[3];  // the block whose shared memory it is, where that is another one
  int64_t row, col;  // of the operand, matrix after matrix of a batch, or -1
  int64_t offset;    // bytes: in shared memory, or from the operand's start
  uint64_t pc, other_pc;      // relative to the library
  Site site, other_site;      // file may be null
  uint64_t frames[MAX_FRAMES];  // of a crash or timeout: return addresses, innermost first
  int64_t times;
};

struct Counters {
  uint64_t global_requests[2], global_sectors[2], global_bytes[2];  // loads, stores
  uint64_t shared_requests[2], shared_wavefronts[2], shared_ideal[2], shared_bytes[2];
  uint64_t operand_bytes[NUM_OPERANDS], operand_sectors[NUM_OPERANDS];
  uint64_t barriers, warp_barriers, shuffles, async_copies, atomics;
  uint64_t blocks, threads;
};

struct MmaCount {
  int32_t m, n, k, in, out, instruction;
  uint64_t count;
};

struct L2Result {
  uint64_t accesses, hits;            // 32-byte sectors
  uint64_t dram_read, dram_written;   // bytes
  int64_t blocks_per_sm, waves;
  int32_t modelled, unused;
};

struct LaunchInfo {
  uint32_t grid[3], block[3];
  uint64_t shared_static, shared_dynamic;
  uint64_t kernel_pc;
  uint32_t cluster, unused;  // blocks of a cluster, the most of any launch so far
};

struct Result {
  int32_t launch_error;  // what tcgemm_launch returned
  int32_t finding_count;
  Finding findings[MAX_FINDINGS];
  Counters counters;
  MmaCount mma[MAX_MMA_KINDS];
  L2Result l2;
  LaunchInfo launch, refused;  // refused: that ended in an error of the configuration, else all 0
  uint64_t image_base;
};

struct Worker {
  pid_t pid;
  uint32_t block[3];
  uint64_t traced;  // entries in this worker's trace
  int32_t finding_count;
  Finding findings[MAX_FINDINGS];
  Counters counters;
  MmaCount mma[MAX_MMA_KINDS];
};

struct BlockTrace {
  int32_t worker;
  uint32_t count;
  uint64_t first;
};

// Shared by all processes of a run (run.hpp).
struct Control {
  std::atomic<uint64_t> next_cluster;
  std::atomic<int32_t> stop;
  int32_t launch_error;
  int32_t leader_done;
  int32_t worker_count;
  const char* image;  // the leader's image_low: findings name files by pointers into its library
  LaunchInfo launch, refused;
  L2Result l2;
  Worker workers[MAX_WORKERS];
};

struct Operand {
  char* data;   // element (0, 0), in a mapping of our own
  char* map;    // the mapping: guard, view, guard
  size_t map_bytes, bytes;  // of these, the view's
  int64_t rows, cols, row_stride, col_stride;
  int64_t batches, batch_stride;
  int64_t item;
  // The two dimensions with their strides in descending order, for finding an address's element.
  int64_t big_stride, small_stride, big_count, small_count;
  bool big_is_row, decodable;
  uint64_t first_sector;  // number of its first 32-byte sector among those of all operands
};

extern Request request;
extern Control* control;
extern Worker* worker;
// C, and a bias or a pre-activation that is written.
bool is_result(int operand);
// Whether this is scratch memory of the launch, whose accesses are neither checked nor counted.
bool is_lent(const char* address);
extern Operand operands[NUM_OPERANDS];
// Per element of C: 1 + the block that wrote it, with BY_ATOMIC where an atomic operation did; the
// same negative where an earlier launch wrote it; 0 where nobody did.
extern int32_t* c_writers;
constexpr int32_t BY_ATOMIC = 1 << 30;

enum class State : uint8_t { ready, meeting, barrier, named_barrier, waiting, done };
using Epoch = uint32_t;  // when a thread did something: see clocks.hpp

struct Copy {
  char* to;
  const char* from;
  int32_t bytes, source_bytes;
  bool through_l1;
  uint64_t pc;
};

struct Thread {
  void* sp;
  Indices indices;
  State state;
  uint8_t warp, lane;
  uint8_t rank, cluster_warp;  // of its block, and the warp's number among all of the cluster
  bool arrived;                // at the cluster's barrier, and has not waited there since
  uint32_t arrived_phase;
  int16_t named_barrier;
  int32_t linear;
  char* stack;
  Meeting meeting;
  uint32_t mask;
  void* arguments;
  void (*act)(Thread* lanes);  // at a meeting of kind custom
  Site site;
  uint64_t pc;
  bool (*ready)(void*);
  void* ready_argument;
  const char* waits_for;
  std::vector<Copy> copies;      // issued, not landed
  std::vector<int32_t> groups;   // copies in each committed group, oldest first
  int32_t uncommitted;
};

struct Warp {
  uint32_t present;  // lanes that the block has
  uint32_t exited;
  uint32_t arrived;  // lanes at a meeting of the whole warp
};

using Threads = std::array<Thread, MAX_THREADS>;
using Warps = std::array<Warp, MAX_WARPS>;
extern PerBlock<Threads> threads_of;
extern PerBlock<Warps> warps_of;
extern Thread* threads;  // of the running block
extern Warp* warps;
extern Thread* current;
extern int thread_count, warp_count;
extern uint64_t block_number;
extern size_t dynamic_shared_bytes;
extern char *shared_low, *shared_high;  // this module's thread-local block: all shared memory
extern char *image_low, *image_high;    // the library itself
extern char *params_low, *params_high;
constexpr size_t STACK_BYTES = 256 * 1024;

[[noreturn]] void abandon_block();  // from a thread: leaves the block, and ends the run
Finding* report(Kind kind, uint64_t pc, int operand = -1);
// What an instruction does not allow, with two numbers for the sentence.
Finding* report_misuse(Misuse what, uint64_t pc, Site site, int64_t number, int32_t other = 0);
void belongs_to(Finding* f, int rank);  // f may be null
Position position_of(const Thread& thread);
inline uint64_t relative_pc(const void* pc) {
  return reinterpret_cast<uint64_t>(pc) - reinterpret_cast<uint64_t>(image_low);
}

// The lane's arguments at a meeting.
struct MatrixArguments {
  FragmentKind kind;
  void* fragment;
  char* matrix;
  uint32_t ld;
  bool column;
};
struct MmaArguments {
  FragmentKind a_kind, accumulator_kind;
  Element out;
  void* d;
  const void *a, *b, *c;
};
struct LdmatrixArguments {
  uint32_t* registers;
  const char* row;
  int32_t count;
  bool transpose;
};
struct MmaPtxArguments {
  int32_t k;
  Element in, b_in, accumulator;
  void* d;
  const void *a, *b, *c;
};

int element_bytes(Element element);
int fragment_rows(const FragmentKind& kind);
int fragment_cols(const FragmentKind& kind);
void element_position(const FragmentKind& kind, int lane, int element, int* row, int* col);
// One lane's part of a matrix load or store.
void move_fragment(const MatrixArguments& arguments, int lane, bool store);
void multiply(const Thread* lanes);
void multiply_ptx(const Thread* lanes);
void exchange_ldmatrix(const Thread* lanes);

// A meeting of the whole warp at which the last lane calls act(lanes).
void meet_warp(void (*act)(Thread* lanes), void* arguments, Site site, uint64_t pc);

// hopper.cpp: what is asynchronous belongs to a block, or to a thread.
void hopper_start_block();
void hopper_end_thread(Thread& thread);
void hopper_end_block();  // the last thread of the running block has returned

// What those who arrive at a barrier hand on to those who wait there, by warp of the cluster: the last
// clock that is ordered, and the last one whose writes by threads are visible in other blocks.
struct Clocks {
  std::vector<int64_t> seen, visible;
};

// Observation; each is called only where OBSERVE is true.

namespace observe {
void start_run();
void end_launch();
void start_block();
void enter_block();  // another block of the cluster is the running one
void end_block();
// The lanes of a warp stand at the same place: their accesses since the last time belong together.
void converge(int warp);
void order_warp(int warp);
void order_block(uint64_t warp_mask);
// instruction: 0 mma.sync, 1 wmma, 2 wgmma.
void count_mma(int m, int n, int k, Element in, Element out, int instruction);
void matrix_access(const Thread* lanes, bool store);
void ldmatrix_access(const Thread* lanes);
void async_issued(const Copy& copy);
void async_lands(const Copy& copy);
// By the running thread: of wgmma, and of stmatrix.
void wgmma_read(char* address, int bytes, Site site, uint64_t pc);
void shared_write(char* address, int bytes, uint64_t pc);
void fence_proxy();
void async_write_begins(char* to, int bytes, uint64_t pc);
void async_read_begins(char* from, int bytes, Site site, uint64_t pc);
void async_read_ends(char* from, int bytes, uint64_t pc);
// A contiguous part of a bulk copy.
void bulk_global(const char* address, int64_t bytes, bool write, uint64_t pc);
void end_run();  // in the leader, after all workers have ended

// clocks.cpp

void start_clocks();  // once a cluster
void forget(Clocks& clocks);
// What the thread's warp did so far is ordered before what whoever acquires `clocks` does next.
// `visible`: to other blocks, too, as release at the scope of the cluster has it.
void release(const Thread& thread, Clocks& clocks, bool visible);
void acquire(const Thread& thread, const Clocks& clocks);
// The thread issues a copy that writes to several blocks, or to another; what is done at that time is
// ordered for who acquires the clocks of the barrier that counts it in.
Epoch issues(const Thread& thread);
void lands(Epoch issued, Clocks& clocks);
bool is_ordered(Epoch before, const Thread& thread);
Epoch now_of(const Thread& thread);
// The running thread reaches into another block's memory, which has to be there until then.
void touches(int rank, Site site, uint64_t pc);
// The running block ends.
void leaves_cluster();

// races.cpp, of another block of the cluster: offsets in its shared memory.
void cluster_read(int rank, uint32_t at, int bytes, uint64_t pc);
void cluster_write_begins(int rank, uint32_t at, int bytes, uint64_t pc);
// In the running block, by a copy issued then.
void cluster_write_lands(uint32_t to, int bytes, Epoch issued, uint64_t pc);
void cluster_read_begins(uint32_t from, int bytes, Site site, uint64_t pc);
// From block `rank` to the running one, whose running thread has waited for it.
void cluster_transfer_lands(int rank, uint32_t from, uint32_t to, int bytes, Epoch issued,
                            uint64_t pc);

// timeline.cpp: what a warp does when. Nothing happens where no timeline is asked for.

// In the order of PHASES in ../timeline.py.
enum class Phase : int32_t {
  load, wait_loads, copy, wait_copies, bulk_load, wait_mbarrier, wait_barrier, shared_load,
  shared_store, mma, wgmma, wait_wgmma, tensor_cores, store, bulk_store,
};
uint64_t clock_of(int warp);  // ticks
void passes(int warp, Phase phase, uint64_t ticks, int line);
void waits(int warp, Phase phase, uint64_t until, int line);
// At a barrier: until the last of these warps has come, and until `least`.
void waits_for_each_other(uint64_t warp_mask, uint64_t least, int line);
// Returns when the data are there.
uint64_t asks_for_copy(int warp, Phase phase, int line);
void multiplies(int warp, int m, int n, int k_bytes, int line);
// Returns when the tensor cores have done it.
uint64_t issues_wgmma(int warp, int n, int line);
// The running thread commits its copies to a group (pending < 0), or waits for all but the latest
// `pending` groups.
void marks_copies(int pending);
}  // namespace observe

}  // namespace tcgemm::simulator
