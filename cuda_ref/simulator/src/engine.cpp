// Threads as coroutines, barriers and meetings, and the processes that run a grid's blocks.
//
// A run forks a leader, which calls the launcher; each launch forks helpers, and all of them take
// blocks from one counter. Operands lie in mappings shared by these processes, so a kernel that
// crashes, hangs or writes where it should not harms nobody's memory but its own.
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "internal.hpp"

#include "host/gemm.cuh"

#undef alignas
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {

const Indices* current_indices;
uint3 block_index;
dim3 block_dim, grid_dim;

Request request;
Control* control;
Worker* worker;
Operand operands[NUM_OPERANDS];
int32_t* c_writers;
std::vector<std::pair<char*, char*>> loans;

bool is_lent(const char* address) {
  for (const auto& [begin, end] : loans)
    if (address >= begin && address < end) return true;
  return false;
}

Thread threads[MAX_THREADS];
Warp warps[MAX_WARPS];
Thread* current;
int thread_count, warp_count;
uint64_t block_number;
size_t dynamic_shared_bytes;
char *shared_low, *shared_high, *image_low, *image_high, *params_low, *params_high;

namespace {

void* scheduler_sp;
const Launch* launch_now;
int alive, at_barrier;
int barrier_sum, barrier_result;
bool abandoned;
bool on_thread;  // a coroutine runs, not the scheduler
uint64_t random_state;

struct NamedBarrier {
  int arrived, needed;
  uint64_t warps;
} named_barriers[16];

uint64_t next_random() {
  uint64_t z = (random_state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

// Saves the running context's registers on its stack, its stack pointer in *save, and continues
// the context whose stack pointer is `next`.
#if defined(__x86_64__) && !defined(TCGEMM_UCONTEXT)
extern "C" void tcgemm_switch(void** save, void* next);
asm(R"(
.text
.hidden tcgemm_switch
.globl tcgemm_switch
.type tcgemm_switch,@function
tcgemm_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tcgemm_switch,.-tcgemm_switch
)");

static void* fresh_context(char* stack, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + STACK_BYTES);
  *--top = nullptr;  // the entry function's return address: at its start rsp is 8 modulo 16
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}
#else
// Elsewhere the system's contexts, several times slower. A context's stack pointer is its address.
static void tcgemm_switch(void** save, void* next) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(next));
}

static void* fresh_context(char* stack, void (*entry)()) {
  ucontext_t* context = reinterpret_cast<ucontext_t*>(stack + STACK_BYTES - 4096);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = STACK_BYTES - 4096;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif

static void yield_thread() { tcgemm_switch(&current->sp, scheduler_sp); }

void abandon_block() {
  abandoned = true;
  control->stop.store(1);
  if (!on_thread) _exit(0);  // the scheduler found it, and has nobody to return to
  void* nowhere;
  tcgemm_switch(&nowhere, scheduler_sp);
  __builtin_unreachable();
}

Position position_of(const Thread& thread) {
  return {{block_index.x, block_index.y, block_index.z},
          {thread.indices.thread.x, thread.indices.thread.y, thread.indices.thread.z}};
}

// A new finding, or null where the same one was reported before and is only counted.
Finding* report(Kind kind, uint64_t pc, int operand) {
  for (int i = 0; i < worker->finding_count; ++i) {
    Finding& f = worker->findings[i];
    if (f.kind == kind && f.pc == pc && f.operand == operand) {
      ++f.times;
      return nullptr;
    }
  }
  if (worker->finding_count == MAX_FINDINGS) return nullptr;
  Finding& f = worker->findings[worker->finding_count++];
  f = {};
  f.kind = kind;
  f.operand = operand;
  f.pc = pc;
  f.row = f.col = -1;
  f.times = 1;
  if (current) f.at = position_of(*current);
  return &f;
}

static void land(Thread& t, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Copy& copy = t.copies[i];
    std::memcpy(copy.to, copy.from, copy.source_bytes);
    std::memset(copy.to + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
    if constexpr (OBSERVE) observe::async_lands(copy);
  }
  t.copies.erase(t.copies.begin(), t.copies.begin() + static_cast<ptrdiff_t>(count));
}

static void release_barrier() {
  barrier_result = barrier_sum;
  barrier_sum = 0;
  at_barrier = 0;
  const Thread* first = nullptr;
  for (int i = 0; i < thread_count; ++i) {
    Thread& t = threads[i];
    if (t.state != State::barrier) continue;
    t.state = State::ready;
    if constexpr (OBSERVE) {
      if (!first) first = &t;
      if (request.check && (t.site.line != first->site.line || t.site.file != first->site.file)) {
        if (Finding* f = report(Kind::divergent_barrier, t.pc)) {
          f->at = position_of(t);
          f->site = t.site;
          f->has_other = 1;
          f->other = position_of(*first);
          f->other_site = first->site;
          f->other_pc = first->pc;
        }
      }
    }
  }
  if constexpr (OBSERVE) {
    ++worker->counters.barriers;
    for (int w = 0; w < warp_count; ++w) observe::converge(w);
    observe::order_block(~0ull);
  }
}

static void thread_entry() {
  launch_now->invoke(launch_now->kernel, launch_now->params);
  Thread& t = *current;
  if (!t.copies.empty()) land(t, t.copies.size());
  t.groups.clear();
  t.uncommitted = 0;
  hopper_end_thread(t);
  t.state = State::done;
  warps[t.warp].exited |= 1u << t.lane;
  if (--alive > 0 && at_barrier == alive) {
    if constexpr (OBSERVE) {
      // The hardware counts an exited thread as arrived; the language does not allow it.
      if (request.check) {
        for (int i = 0; i < thread_count; ++i) {
          if (threads[i].state != State::barrier) continue;
          if (Finding* f = report(Kind::exited_before_barrier, threads[i].pc)) {
            f->at = position_of(t);
            f->has_other = 1;
            f->other = position_of(threads[i]);
            f->site = f->other_site = threads[i].site;
          }
          break;
        }
      }
    }
    release_barrier();
  }
  yield_thread();
  __builtin_unreachable();
}

static int barrier(int value, Site site, uint64_t pc) {
  Thread& t = *current;
  t.site = site;
  t.pc = pc;
  t.state = State::barrier;
  barrier_sum += value;
  if (++at_barrier == alive) {
    if constexpr (OBSERVE) {
      if (request.check && alive != thread_count) {
        for (int i = 0; i < thread_count; ++i) {
          if (threads[i].state != State::done) continue;
          if (Finding* f = report(Kind::exited_before_barrier, pc)) {
            f->at = position_of(threads[i]);
            f->has_other = 1;
            f->other = position_of(t);
            f->site = f->other_site = site;
          }
          break;
        }
      }
    }
    release_barrier();
  } else {
    yield_thread();
  }
  return barrier_result;
}

#define CALLER relative_pc(__builtin_extract_return_addr(__builtin_return_address(0)))

__attribute__((noinline)) void sync_threads(Site site) { barrier(0, site, CALLER); }
__attribute__((noinline)) int sync_threads_count(int predicate, Site site) {
  return barrier(predicate != 0, site, CALLER);
}

static void arrive(int id, int count, bool wait, Site site, uint64_t pc) {
  Thread& t = *current;
  NamedBarrier& b = named_barriers[id & 15];
  b.needed = count;
  b.warps |= 1ull << t.warp;
  t.site = site;
  t.pc = pc;
  ++b.arrived;
  if (wait) {
    t.state = State::named_barrier;
    t.named_barrier = static_cast<int16_t>(id & 15);
  }
  if (b.arrived >= b.needed) {
    for (int i = 0; i < thread_count; ++i) {
      if (threads[i].state == State::named_barrier && threads[i].named_barrier == (id & 15))
        threads[i].state = State::ready;
    }
    if constexpr (OBSERVE) {
      ++worker->counters.barriers;
      for (int w = 0; w < warp_count; ++w)
        if (b.warps >> w & 1) observe::converge(w);
      observe::order_block(b.warps);
    }
    b = {};
  } else if (wait) {
    yield_thread();
  }
}
__attribute__((noinline)) void sync_named(int id, int count, Site site) {
  arrive(id, count, true, site, CALLER);
}
__attribute__((noinline)) void arrive_named(int id, int count, Site site) {
  arrive(id, count, false, site, CALLER);
}

__attribute__((noinline)) void wait_until(bool (*ready)(void*), void* argument, const char* what,
                                          Site site) {
  Thread& t = *current;
  if (ready(argument)) return;
  t.ready = ready;
  t.ready_argument = argument;
  t.waits_for = what;
  t.site = site;
  t.pc = CALLER;
  t.state = State::waiting;
  yield_thread();
}

namespace {

struct ShuffleArguments {
  char* value;
  int bytes, from;
};
struct VoteArguments {
  bool predicate;
  uint32_t result;
};

Thread* lanes_of(int warp) { return &threads[warp * 32]; }

void carry_out(Thread& t) {
  Thread* lanes = lanes_of(t.warp);
  switch (t.meeting) {
    case Meeting::sync_warp:
      if constexpr (OBSERVE) {
        ++worker->counters.warp_barriers;
        observe::order_warp(t.warp);
      }
      break;
    case Meeting::shuffle: {
      uint64_t values[32] = {};
      for (int l = 0; l < 32; ++l) {
        if (!(t.mask >> l & 1)) continue;
        auto& s = *static_cast<ShuffleArguments*>(lanes[l].arguments);
        std::memcpy(&values[l], s.value, s.bytes);
      }
      for (int l = 0; l < 32; ++l) {
        if (!(t.mask >> l & 1)) continue;
        auto& s = *static_cast<ShuffleArguments*>(lanes[l].arguments);
        if (s.from >= 0 && s.from < 32 && (t.mask >> s.from & 1))
          std::memcpy(s.value, &values[s.from], s.bytes);
      }
      if constexpr (OBSERVE) ++worker->counters.shuffles;
      break;
    }
    case Meeting::vote: {
      uint32_t ballot = 0;
      for (int l = 0; l < 32; ++l)
        if ((t.mask >> l & 1) && static_cast<VoteArguments*>(lanes[l].arguments)->predicate)
          ballot |= 1u << l;
      for (int l = 0; l < 32; ++l)
        if (t.mask >> l & 1) static_cast<VoteArguments*>(lanes[l].arguments)->result = ballot;
      break;
    }
    case Meeting::load_matrix:
    case Meeting::store_matrix: {
      const bool store = t.meeting == Meeting::store_matrix;
      if constexpr (OBSERVE) observe::matrix_access(lanes, store);
      for (int l = 0; l < 32; ++l)
        move_fragment(*static_cast<MatrixArguments*>(lanes[l].arguments), l, store);
      break;
    }
    case Meeting::mma: multiply(lanes); break;
    case Meeting::mma_ptx: multiply_ptx(lanes); break;
    case Meeting::ldmatrix:
      if constexpr (OBSERVE) observe::ldmatrix_access(lanes);
      exchange_ldmatrix(lanes);
      break;
    case Meeting::custom: t.act(lanes); break;
  }
}

void diverged(Thread& t, const Thread& other) {
  if (Finding* f = report(Kind::divergent_warp, t.pc)) {
    f->at = position_of(t);
    f->site = t.site;
    f->has_other = 1;
    f->other = position_of(other);
    f->other_site = other.state == State::done ? Site{nullptr, 0} : other.site;
    f->other_pc = other.pc;
    f->signal = other.state == State::done;
  }
  abandon_block();
}

void meet(Meeting kind, uint32_t mask, void* arguments, Site site, uint64_t pc) {
  Thread& t = *current;
  Warp& w = warps[t.warp];
  const uint32_t lane = 1u << t.lane;
  t.meeting = kind;
  t.mask = mask &= w.present;
  t.arguments = arguments;
  t.site = site;
  t.pc = pc;
  t.state = State::meeting;
  if (!(mask & lane)) diverged(t, t);
  bool complete;
  if (mask == w.present) {
    w.arrived |= lane;
    complete = w.arrived == mask;
  } else {
    complete = true;
    for (int l = 0; l < 32 && complete; ++l) {
      const Thread& other = lanes_of(t.warp)[l];
      if (mask >> l & 1) complete = other.state == State::meeting && other.mask == mask;
    }
  }
  if (!complete) {
    yield_thread();
    return;
  }
  for (int l = 0; l < 32; ++l) {
    Thread& other = lanes_of(t.warp)[l];
    if (!(mask >> l & 1)) continue;
    if (other.meeting != kind || (kind == Meeting::custom && other.act != t.act) ||
        (OBSERVE && request.check && other.site.line != site.line))
      diverged(t, other);
  }
  if (mask == w.present) {
    w.arrived = 0;
    if constexpr (OBSERVE) observe::converge(t.warp);
  }
  carry_out(t);
  for (int l = 0; l < 32; ++l)
    if (mask >> l & 1) lanes_of(t.warp)[l].state = State::ready;
}

}  // namespace

void meet_warp(void (*act)(Thread*), void* arguments, Site site, uint64_t pc) {
  current->act = act;
  meet(Meeting::custom, ~0u, arguments, site, pc);
}

__attribute__((noinline)) void sync_warp(unsigned mask, Site site) {
  meet(Meeting::sync_warp, mask, nullptr, site, CALLER);
}
__attribute__((noinline)) void shuffle(unsigned mask, void* value, int bytes, int from_lane,
                                       Site site) {
  ShuffleArguments arguments{static_cast<char*>(value), bytes, from_lane};
  meet(Meeting::shuffle, mask, &arguments, site, CALLER);
}
__attribute__((noinline)) unsigned vote(unsigned mask, bool predicate, Site site) {
  VoteArguments arguments{predicate, 0};
  meet(Meeting::vote, mask, &arguments, site, CALLER);
  return arguments.result;
}
unsigned active_lanes() { return warps[current->warp].present & ~warps[current->warp].exited; }
int lane_index() { return current->lane; }
int warp_index() { return current->warp; }

// Without observation a lane moves its own elements and nobody waits: nothing can be seen of it.
__attribute__((noinline)) void load_matrix(FragmentKind kind, void* fragment, const void* matrix,
                                           unsigned ld, bool column, Site site) {
  MatrixArguments arguments{kind, fragment,
                            static_cast<char*>(const_cast<void*>(matrix)), ld, column};
  if constexpr (OBSERVE)
    meet(Meeting::load_matrix, ~0u, &arguments, site, CALLER);
  else
    move_fragment(arguments, current->lane, false);
}
__attribute__((noinline)) void store_matrix(FragmentKind kind, const void* fragment, void* matrix,
                                            unsigned ld, bool column, Site site) {
  MatrixArguments arguments{kind, const_cast<void*>(fragment), static_cast<char*>(matrix), ld,
                            column};
  if constexpr (OBSERVE)
    meet(Meeting::store_matrix, ~0u, &arguments, site, CALLER);
  else
    move_fragment(arguments, current->lane, true);
}
__attribute__((noinline)) void mma(FragmentKind a_kind, FragmentKind accumulator_kind, Element out,
                                   void* d, const void* a, const void* b, const void* c,
                                   Site site) {
  MmaArguments arguments{a_kind, accumulator_kind, out, d, a, b, c};
  meet(Meeting::mma, ~0u, &arguments, site, CALLER);
}
__attribute__((noinline)) void ldmatrix(uint32_t* registers, const void* row, int count,
                                        bool transpose, Site site) {
  LdmatrixArguments arguments{registers, static_cast<const char*>(row), count, transpose};
  meet(Meeting::ldmatrix, ~0u, &arguments, site, CALLER);
}
__attribute__((noinline)) void mma_ptx(int k, Element in, Element accumulator, Element b_in,
                                       void* d, const void* a, const void* b, const void* c,
                                       Site site) {
  MmaPtxArguments arguments{k, in, b_in, accumulator, d, a, b, c};
  meet(Meeting::mma_ptx, ~0u, &arguments, site, CALLER);
}

__attribute__((noinline)) void copy_async(void* shared, const void* global, int bytes,
                                          int source_bytes, bool through_l1, Site) {
  Thread& t = *current;
  const Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), bytes,
                  std::max(0, std::min(source_bytes, bytes)), through_l1, CALLER};
  if constexpr (OBSERVE) observe::async_issued(copy);
  t.copies.push_back(copy);
  ++t.uncommitted;
}
void copy_async_commit() {
  current->groups.push_back(current->uncommitted);
  current->uncommitted = 0;
}
void copy_async_wait(int pending) {
  Thread& t = *current;
  size_t copies = 0, groups = 0;
  while (t.groups.size() - groups > static_cast<size_t>(pending)) copies += t.groups[groups++];
  t.groups.erase(t.groups.begin(), t.groups.begin() + static_cast<ptrdiff_t>(groups));
  land(t, copies);
}
void copy_async_wait_all() {
  copy_async_commit();
  copy_async_wait(0);
}

#ifndef TCGEMM_OBSERVE
void note_atomic(void*) {}
#endif

unsigned char* dynamic_shared_memory() { return tcgemm_dynamic_shared; }
uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - shared_low);
}
void* shared_pointer(uint32_t address) { return shared_low + address; }

namespace {

void prepare_stacks() {
  static bool done = false;
  if (done) return;
  done = true;
  const size_t bytes = size_t(MAX_THREADS) * STACK_BYTES;
  char* base = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (int i = 0; i < MAX_THREADS; ++i) threads[i].stack = base + size_t(i) * STACK_BYTES;
}

void guard_stacks() {
  static int guarded = 0;
  for (; guarded < thread_count; ++guarded) mprotect(threads[guarded].stack, 4096, PROT_NONE);
}

void shuffle_order(int* order, int count) {
  for (int i = 0; i < count; ++i) order[i] = request.order == 1 ? count - 1 - i : i;
  if (request.order != 2) return;
  for (int i = count - 1; i > 0; --i)
    std::swap(order[i], order[next_random() % static_cast<uint64_t>(i + 1)]);
}

// Runs the warp's threads until each of them waits; in random order it may stop before that.
bool run_warp(int w) {
  bool any = false;
  int order[32];
  const int sweeps = request.order == 2 ? 1 + static_cast<int>(next_random() % 3) : INT32_MAX;
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    bool ran = false;
    shuffle_order(order, 32);
    for (int lane : order) {
      Thread& t = lanes_of(w)[lane];
      if (!(warps[w].present >> lane & 1)) continue;
      if (t.state == State::waiting && t.ready(t.ready_argument)) t.state = State::ready;
      if (t.state != State::ready) continue;
      ran = any = true;
      current = &t;
      current_indices = &t.indices;
      on_thread = true;
      tcgemm_switch(&scheduler_sp, t.sp);
      on_thread = false;
      current = nullptr;
      if (abandoned) return true;
    }
    if (!ran) break;
  }
  return any;
}

// Nobody can go on: says who waits where.
void report_deadlock() {
  const Thread* waits = nullptr;
  for (int i = 0; i < thread_count && !waits; ++i)
    if (threads[i].state == State::meeting) waits = &threads[i];
  for (int i = 0; i < thread_count && !waits; ++i)
    if (threads[i].state != State::done) waits = &threads[i];
  if (waits->state == State::meeting) {
    for (int l = 0; l < 32; ++l) {
      const Thread& other = lanes_of(waits->warp)[l];
      if (!(waits->mask >> l & 1) || other.state == State::meeting) continue;
      if (Finding* f = report(Kind::divergent_warp, waits->pc)) {
        f->at = position_of(*waits);
        f->site = waits->site;
        f->has_other = 1;
        f->other = position_of(other);
        f->signal = other.state == State::done;
        if (!f->signal) f->other_site = other.site;
        f->other_pc = other.pc;
      }
      return;
    }
  }
  const Thread* other = nullptr;
  for (int i = 0; i < thread_count && !other; ++i)
    if (threads[i].state != State::done &&
        (threads[i].state != waits->state || threads[i].site.line != waits->site.line))
      other = &threads[i];
  if (Finding* f = report(Kind::deadlock, waits->pc)) {
    f->at = position_of(*waits);
    f->site = waits->site;
    if (other) {
      f->has_other = 1;
      f->other = position_of(*other);
      f->other_site = other->site;
      f->other_pc = other->pc;
    }
  }
}

void run_block(uint64_t index) {
  const dim3 grid = launch_now->grid;
  block_number = index;
  block_index = {static_cast<unsigned>(index % grid.x),
                 static_cast<unsigned>(index / grid.x % grid.y),
                 static_cast<unsigned>(index / grid.x / grid.y)};
  worker->block[0] = block_index.x;
  worker->block[1] = block_index.y;
  worker->block[2] = block_index.z;
  random_state = request.seed * 0x2545f4914f6cdd1dull + index + 1;

  // Shared memory starts as NaN in every floating type, so that what is read unwritten shows.
  char* dynamic = reinterpret_cast<char*>(tcgemm_dynamic_shared);
  std::memset(shared_low, 0xff, static_cast<size_t>(dynamic - shared_low));
  std::memset(dynamic, 0xff, dynamic_shared_bytes);
  std::memset(dynamic + MAX_SHARED, 0xff, static_cast<size_t>(shared_high - dynamic - MAX_SHARED));

  for (int i = 0; i < thread_count; ++i) {
    Thread& t = threads[i];
    t.state = State::ready;
    t.sp = fresh_context(t.stack, thread_entry);
    t.copies.clear();
    t.groups.clear();
    t.uncommitted = 0;
  }
  for (int w = 0; w < warp_count; ++w) warps[w].exited = warps[w].arrived = 0;
  alive = thread_count;
  at_barrier = barrier_sum = 0;
  std::memset(named_barriers, 0, sizeof(named_barriers));
  hopper_start_block();
  if constexpr (OBSERVE) observe::start_block();

  int order[MAX_WARPS];
  while (alive > 0 && !abandoned) {
    bool any = false;
    shuffle_order(order, warp_count);
    for (int i = 0; i < warp_count && !abandoned; ++i) any |= run_warp(order[i]);
    if (!any && !abandoned && alive > 0) {
      report_deadlock();
      abandoned = true;
      control->stop.store(1);
    }
  }
  current = nullptr;
  if constexpr (OBSERVE) observe::end_block();
}

uint64_t nth_block(uint64_t n, uint64_t total) {
  if (request.order == 0) return n;
  if (request.order == 1) return total - 1 - n;
  // A permutation without a table: n -> (n * step + start) modulo total, step coprime to it.
  uint64_t state = random_state;
  random_state = request.seed + 77;
  uint64_t step = next_random() % total | 1, start = next_random() % total;
  random_state = state;
  auto gcd = [](uint64_t a, uint64_t b) {
    while (b) {
      uint64_t r = a % b;
      a = b;
      b = r;
    }
    return a;
  };
  while (gcd(step, total) != 1) ++step;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(n) * step + start) % total);
}

void run_blocks() {
  const dim3 g = launch_now->grid;
  const uint64_t total = uint64_t(g.x) * g.y * g.z;
  while (!control->stop.load()) {
    const uint64_t n = control->next_block.fetch_add(1);
    if (n >= total) break;
    run_block(nth_block(n, total));
  }
}

void crash_handler(int signal, siginfo_t* info, void* context) {
  uint64_t pc = 0;
#if defined(__x86_64__)
  pc = static_cast<uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  pc = static_cast<ucontext_t*>(context)->uc_mcontext.pc;
#endif
  if (worker) {
    const bool timeout = signal == SIGUSR1;
    const uint64_t where = pc - reinterpret_cast<uint64_t>(image_low) + 1;
    worker->finding_count = std::min(worker->finding_count, MAX_FINDINGS - 1);
    if (Finding* f = report(timeout ? Kind::timeout : Kind::crash, where)) {
      f->signal = signal;
      f->at.block[0] = block_index.x;
      f->at.block[1] = block_index.y;
      f->at.block[2] = block_index.z;
      f->offset = static_cast<int64_t>(reinterpret_cast<uint64_t>(info->si_addr));
      // Where the fault lies in the runtime, one of its callers has a place in the kernel's source.
      void* frames[MAX_FRAMES];
      const int count = backtrace(frames, MAX_FRAMES);
      for (int i = 0; i < count; ++i) f->frames[i] = relative_pc(frames[i]);
      if (!current) f->has_other = -1;  // outside every thread: the launcher, or a block's start
    }
  }
  control->stop.store(1);
  _exit(signal == SIGUSR1 ? 3 : 2);
}

void become_worker(int index) {
  worker = &control->workers[index];
  worker->pid = getpid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  static char alternate[64 * 1024];
  stack_t stack{};
  stack.ss_sp = alternate;
  stack.ss_size = sizeof(alternate);
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = crash_handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGUSR1}) sigaction(s, &action, nullptr);
}

int find_image(dl_phdr_info* info, size_t, void*) {
  const char* here = reinterpret_cast<const char*>(&find_image);
  const char* low = nullptr;
  const char* high = nullptr;
  size_t tls_bytes = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const char* start = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    if (header.p_type == PT_LOAD) {
      if (!low) low = start;
      high = start + header.p_memsz;
    } else if (header.p_type == PT_TLS) {
      tls_bytes = header.p_memsz;
    }
  }
  if (here < low || here >= high) return 0;
  image_low = reinterpret_cast<char*>(info->dlpi_addr);
  image_high = const_cast<char*>(high);
  shared_low = static_cast<char*>(info->dlpi_tls_data);
  shared_high = shared_low + tls_bytes;
  return shared_low ? 1 : 2;
}

}  // namespace

int run_grid(const Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  const uint64_t block_threads = uint64_t(b.x) * b.y * b.z;
  const uint64_t blocks = uint64_t(g.x) * g.y * g.z;
  if (block_threads == 0 || block_threads > MAX_THREADS || b.x > 1024 || b.y > 1024 || b.z > 64 ||
      blocks == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (launch.shared_bytes > MAX_SHARED) return cudaErrorInvalidValue;

  launch_now = &launch;
  params_low = static_cast<char*>(launch.params);
  params_high = params_low + launch.params_bytes;
  grid_dim = g;
  block_dim = b;
  thread_count = static_cast<int>(block_threads);
  warp_count = (thread_count + 31) / 32;
  dynamic_shared_bytes = launch.shared_bytes;
  for (int i = 0; i < thread_count; ++i) {
    Thread& t = threads[i];
    t.linear = i;
    t.warp = static_cast<uint8_t>(i / 32);
    t.lane = static_cast<uint8_t>(i % 32);
    t.indices.thread = {i % b.x, i / b.x % b.y, i / b.x / b.y};
  }
  for (int w = 0; w < warp_count; ++w) {
    const int left = thread_count - 32 * w;
    warps[w].present = left >= 32 ? ~0u : (1u << left) - 1;
  }
  control->launch = {{g.x, g.y, g.z}, {b.x, b.y, b.z},
                     static_cast<uint64_t>(request.shared_static),
                     launch.shared_bytes, relative_pc(launch.kernel)};
  control->next_block.store(0);
  prepare_stacks();
  guard_stacks();
  if constexpr (OBSERVE) observe::start_run();

  const int wanted = static_cast<int>(
      std::min<uint64_t>(std::min<uint64_t>(request.workers, MAX_WORKERS), blocks));
  pid_t helpers[MAX_WORKERS];
  int started = 1;
  for (; started < wanted; ++started) {
    const pid_t pid = fork();
    if (pid < 0) break;
    if (pid == 0) {
      become_worker(started);
      run_blocks();
      _exit(0);
    }
    helpers[started] = pid;
    control->workers[started].pid = pid;
  }
  control->worker_count = std::max(control->worker_count, started);
  run_blocks();
  for (int i = 1; i < started; ++i) {
    int status = 0;
    while (waitpid(helpers[i], &status, 0) < 0 && errno == EINTR) {
    }
    control->workers[i].pid = 0;
    if (status != 0) control->stop.store(1);
  }
  if constexpr (OBSERVE) observe::end_launch();
  return cudaSuccess;
}

namespace {

constexpr size_t GUARD = 1 << 16;

// Copies the operand's elements, and nothing between them, from one place to another.
void copy_elements(const Operand& o, char* to, const char* from) {
  for (int64_t z = 0; z < o.batches; ++z) {
    for (int64_t i = 0; i < o.big_count; ++i) {
      const int64_t start = (z * o.batch_stride + i * o.big_stride) * o.item;
      if (o.small_stride == 1 || o.small_count == 1) {
        std::memcpy(to + start, from + start, static_cast<size_t>(o.small_count * o.item));
        continue;
      }
      for (int64_t j = 0; j < o.small_count; ++j) {
        const int64_t at = start + j * o.small_stride * o.item;
        std::memcpy(to + at, from + at, static_cast<size_t>(o.item));
      }
    }
  }
}

// A copy of the operand's elements at the same address modulo 256, with guards of NaN around the
// view and between its rows where the view is not far larger than its elements.
bool map_operand(Operand& o, const OperandRequest& from, bool shared) {
  const int64_t matrix_last =
      (from.rows - 1) * from.row_stride + (from.cols - 1) * from.col_stride;
  const int64_t last = matrix_last + (from.batches - 1) * from.batch_stride;
  const size_t bytes = static_cast<size_t>((last + 1) * from.item_bytes);
  o.map_bytes = (bytes + 2 * GUARD + 8191) & ~size_t(4095);
  void* map = mmap(nullptr, o.map_bytes, PROT_READ | PROT_WRITE,
                   (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return false;
  o.map = static_cast<char*>(map);
  o.data = o.map + GUARD + reinterpret_cast<uintptr_t>(from.data) % 256;
  o.rows = from.rows;
  o.cols = from.cols;
  o.row_stride = from.row_stride;
  o.col_stride = from.col_stride;
  o.batch_stride = from.batches > 1 ? from.batch_stride : 0;
  o.batches = o.batch_stride ? from.batches : 1;
  o.item = from.item_bytes;

  const int64_t rs = from.rows > 1 ? from.row_stride : 0, cs = from.cols > 1 ? from.col_stride : 0;
  o.big_is_row = rs >= cs;
  o.big_stride = o.big_is_row ? rs : cs;
  o.small_stride = o.big_is_row ? cs : rs;
  o.big_count = o.big_stride == 0 ? 1 : o.big_is_row ? o.rows : o.cols;
  o.small_count = o.small_stride == 0 ? 1 : o.big_is_row ? o.cols : o.rows;
  o.decodable = (o.big_stride == 0 || o.big_stride > (o.small_count - 1) * o.small_stride) &&
                (o.batches == 1 || o.batch_stride > matrix_last);

  if (bytes <= 16 * static_cast<size_t>(o.batches * o.rows * o.cols * o.item) + 4096) {
    std::memset(o.map, 0xff, o.map_bytes);
  } else {
    std::memset(o.map, 0xff, static_cast<size_t>(o.data - o.map));
    std::memset(o.data + bytes, 0xff, GUARD);
  }
  copy_elements(o, o.data, static_cast<const char*>(from.data));
  return true;
}

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// C_in may be C itself, and is then read where C is written.
bool c_in_is_c() {
  const void* c_in = request.operands[C_IN_OPERAND].data;
  return c_in && c_in == request.operands[C_OPERAND].data;
}

// Memory that the workers share, all ones at first: NaN to who reads what was not written.
void* lend(size_t bytes, void*) {
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  loans.push_back({static_cast<char*>(map), static_cast<char*>(map) + bytes});
  return std::memset(map, 0xff, bytes);
}

[[noreturn]] void lead() {
  become_worker(0);
  Gemm gemm{};
  gemm.scratch.allocate = lend;
  Matrix* matrices[] = {&gemm.a, &gemm.b, &gemm.c, &gemm.c_in};
  for (int i = 0; i < 4; ++i) {
    const OperandRequest& from = request.operands[i];
    *matrices[i] = {operands[i].data, from.rows,       from.cols,
                    from.row_stride,  from.col_stride, from.batch_stride};
  }
  if (c_in_is_c()) gemm.c_in.data = gemm.c.data;
  Vector* vectors[] = {&gemm.bias, &gemm.scale_a, &gemm.scale_b};
  for (int i = 0; i < 3; ++i) {
    const OperandRequest& from = request.operands[C_IN_OPERAND + 1 + i];
    *vectors[i] = {operands[C_IN_OPERAND + 1 + i].data, from.row_stride, from.col_stride};
  }
  gemm.batch = request.operands[C_OPERAND].batches;
  gemm.alpha = request.alpha;
  gemm.beta = request.beta;
  gemm.activation = static_cast<Activation>(request.activation);
  gemm.compute = static_cast<Compute>(request.compute);
  gemm.mma_m = request.mma_m;
  gemm.mma_n = request.mma_n;
  gemm.in = static_cast<DType>(request.dtype_in);
  gemm.out = static_cast<DType>(request.dtype_out);
  control->launch_error = tcgemm_launch(gemm, nullptr);
  if constexpr (OBSERVE) {
    if (control->launch_error == 0) observe::end_run();
  }
  control->leader_done = 1;
  _exit(0);
}

// Waits for the leader; kills every worker where the time is up. Returns the leader's status.
int wait_for(pid_t leader, double timeout_s, bool* timed_out) {
  const double start = now();
  int status = 0;
  for (long pause = 20'000;; pause = std::min(pause * 2, 2'000'000L)) {
    const pid_t done = waitpid(leader, &status, WNOHANG);
    if (done == leader) return status;
    if (done < 0 && errno != EINTR) return -1;
    if (now() - start > timeout_s && !*timed_out) {
      *timed_out = true;
      control->stop.store(1);
      for (int i = control->worker_count - 1; i >= 0; --i)
        if (control->workers[i].pid > 0) kill(control->workers[i].pid, SIGUSR1);
    }
    if (now() - start > timeout_s + 2) {
      for (int i = control->worker_count - 1; i >= 0; --i)
        if (control->workers[i].pid > 0) kill(control->workers[i].pid, SIGKILL);
      kill(leader, SIGKILL);
    }
    timespec t{0, pause};
    nanosleep(&t, nullptr);
  }
}

void add_finding(Result& result, const Finding& finding) {
  for (int i = 0; i < result.finding_count; ++i) {
    Finding& f = result.findings[i];
    if (f.kind == finding.kind && f.pc == finding.pc && f.operand == finding.operand) {
      f.times += finding.times;
      return;
    }
  }
  if (result.finding_count < MAX_FINDINGS) result.findings[result.finding_count++] = finding;
}

void collect(Result& result) {
  for (int w = 0; w < control->worker_count; ++w) {
    const Worker& from = control->workers[w];
    for (int i = 0; i < from.finding_count; ++i) add_finding(result, from.findings[i]);
    const auto* add = reinterpret_cast<const uint64_t*>(&from.counters);
    auto* to = reinterpret_cast<uint64_t*>(&result.counters);
    for (size_t i = 0; i < sizeof(Counters) / 8; ++i) to[i] += add[i];
    for (const MmaCount& m : from.mma) {
      if (m.count == 0) continue;
      for (MmaCount& r : result.mma) {
        const bool same = std::memcmp(&r, &m, offsetof(MmaCount, count)) == 0;
        if (r.count && !same) continue;
        const uint64_t sum = r.count + m.count;
        r = m;
        r.count = sum;
        break;
      }
    }
  }
}

}  // namespace

}  // namespace tcgemm::simulator

using namespace tcgemm::simulator;

// Runs the kernel of this library on the request's operands. Returns 0, or a negative number where
// nothing could be run: -1 no memory, -2 no process, -3 no thread-local storage.
extern "C" __attribute__((visibility("default"))) int tcgemm_simulate(const Request* asked,
                                                                      Result* result) {
  std::memset(static_cast<void*>(result), 0, sizeof(*result));
  request = *asked;
  // A first access makes the thread-local block exist, so that its address can be asked for.
  *static_cast<volatile unsigned char*>(tcgemm_dynamic_shared) = 0;
  if (dl_iterate_phdr(find_image, nullptr) != 1) return -3;
  result->image_base = reinterpret_cast<uint64_t>(image_low);

  void* map = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                   -1, 0);
  if (map == MAP_FAILED) return -1;
  control = new (map) Control{};
  control->worker_count = 1;
  bool mapped = true;
  uint64_t sectors = 0;
  for (Operand& o : operands) o = {};
  for (int i = 0; i < NUM_OPERANDS && mapped; ++i) {
    if (!request.operands[i].data || (i == C_IN_OPERAND && c_in_is_c())) continue;
    mapped = map_operand(operands[i], request.operands[i], i == C_OPERAND);
    operands[i].first_sector = sectors;
    sectors += operands[i].map_bytes / 32;
  }
  const Operand& c = operands[C_OPERAND];
  const size_t writers_bytes =
      OBSERVE && mapped ? static_cast<size_t>(c.batches * c.rows * c.cols) * 4 : 0;
  c_writers = nullptr;
  if (writers_bytes) {
    void* w = mmap(nullptr, writers_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mapped = w != MAP_FAILED;
    if (mapped) c_writers = static_cast<int32_t*>(w);
  }

  int status = 0, failure = mapped ? 0 : -1;
  bool timed_out = false;
  if (mapped) {
    const pid_t leader = fork();
    if (leader == 0) lead();
    if (leader < 0) {
      failure = -2;
    } else {
      status = wait_for(leader, request.timeout_s, &timed_out);
    }
  }
  if (failure == 0) {
    result->launch_error = control->launch_error;
    result->launch = control->launch;
    result->l2 = control->l2;
    collect(*result);
    if (!control->leader_done && result->finding_count == 0) {
      Finding f{};
      f.kind = timed_out ? Kind::timeout : Kind::crash;
      f.operand = -1;
      f.has_other = -1;
      f.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      f.times = 1;
      std::memcpy(f.at.block, control->workers[0].block, sizeof(f.at.block));
      add_finding(*result, f);
    }
    copy_elements(c, static_cast<char*>(request.operands[C_OPERAND].data), c.data);
    if (request.writers && c_writers) std::memcpy(request.writers, c_writers, writers_bytes);
  }
  for (Operand& o : operands)
    if (o.map) munmap(o.map, o.map_bytes);
  if (c_writers) munmap(c_writers, writers_bytes);
  munmap(map, sizeof(Control));
  control = nullptr;
  return failure;
}
