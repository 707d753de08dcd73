// Threads as coroutines: a stack each, a scheduler that runs a cluster's warps in a legal order, and
// what is said where nobody can go on.
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <utility>

#include "engine.hpp"

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

namespace tcgemm::simulator {

const Indices* current_indices;
uint3 block_index;
dim3 block_dim, grid_dim;

Thread* current;
int thread_count, warp_count;
size_t dynamic_shared_bytes;
char *shared_low, *shared_high, *image_low, *image_high, *params_low, *params_high;

const Launch* launch_now;
bool abandoned;

namespace {

void* scheduler_sp;
bool on_thread;  // a coroutine runs, not the scheduler
uint64_t random_state;

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

void yield_thread() { tcgemm_switch(&current->sp, scheduler_sp); }

void abandon_block() {
  abandoned = true;
  control->stop.store(1);
  if (!on_thread) _exit(0);  // the scheduler found it, and has nobody to return to
  void* nowhere;
  tcgemm_switch(&nowhere, scheduler_sp);
  __builtin_unreachable();
}

unsigned char* dynamic_shared_memory() { return tcgemm_dynamic_shared; }
uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - shared_low);
}
void* shared_pointer(uint32_t address) { return shared_low + address; }

#ifndef TCGEMM_OBSERVE
void note_atomic(void*, int, const void*) {}
#endif

namespace {

// Nobody may touch the page. Linux 6.13 can mark it in the page table; else it becomes a mapping of
// its own, and a fork copies a thousand of these ten times more slowly.
void guard(char* page) {
  constexpr int GUARD_INSTALL = 102;  // MADV_GUARD_INSTALL
  if (madvise(page, 4096, GUARD_INSTALL) != 0) mprotect(page, 4096, PROT_NONE);
}

}  // namespace

void prepare_stacks() {
  static int guarded[MAX_CLUSTER];
  for (int rank = 0; rank < cluster_size; ++rank) {
    Threads& all = threads_of.of(rank);
    if (!all[0].stack) {
      char* base = static_cast<char*>(mmap(nullptr, MAX_THREADS * STACK_BYTES,
                                           PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      for (size_t i = 0; i < MAX_THREADS; ++i) all[i].stack = base + i * STACK_BYTES;
    }
    for (int& i = guarded[rank]; i < thread_count; ++i) guard(all[i].stack);
  }
}

namespace {

void thread_entry() {
  launch_now->invoke(launch_now->kernel, launch_now->params);
  Thread& t = *current;
  if (!t.copies.empty()) land(t, t.copies.size());
  t.groups.clear();
  t.uncommitted = 0;
  hopper_end_thread(t);
  t.state = State::done;
  warps[t.warp].exited |= 1u << t.lane;
  leave_block();
  yield_thread();
  __builtin_unreachable();
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

// The first of the cluster's threads, from the running block's on, of which `wanted` is true.
template <typename Wanted>
const Thread* first_thread(Wanted wanted) {
  for (int b = 0; b < cluster_size; ++b)
    for (int i = 0; i < thread_count; ++i) {
      const Thread& t = threads_of.of((rank_now + b) % cluster_size)[i];
      if (wanted(t)) return &t;
    }
  return nullptr;
}

// Nobody can go on: says who waits where.
void report_deadlock() {
  const Thread* waits = first_thread([](const Thread& t) { return t.state == State::meeting; });
  if (!waits) waits = first_thread([](const Thread& t) { return t.state != State::done; });
  if (waits->state == State::meeting) {
    for (int l = 0; l < 32; ++l) {
      const Thread& other = threads_of.of(waits->rank)[waits->warp * 32 + l];
      if (!(waits->mask >> l & 1) || other.state == State::meeting) continue;
      if (other.state == State::waiting) {  // for an mbarrier or the cluster: the cause is there
        waits = &other;
        break;
      }
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
  const Thread* other = first_thread([&](const Thread& t) {
    return t.state != State::done &&
           (t.state != waits->state || t.site.line != waits->site.line);
  });
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

// Prepares block `rank` of the cluster, which becomes the running one.
void start_block(int rank, uint64_t number) {
  const dim3 grid = launch_now->grid;
  blocks[rank] = {{static_cast<unsigned>(number % grid.x),
                   static_cast<unsigned>(number / grid.x % grid.y),
                   static_cast<unsigned>(number / grid.x / grid.y)},
                  number, thread_count};
  enter_block(rank);

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
    t.arrived = false;
  }
  for (int w = 0; w < warp_count; ++w) warps[w].exited = warps[w].arrived = 0;
  start_block_barriers();
  hopper_start_block();
  if constexpr (OBSERVE) observe::start_block();
}

uint64_t rounds_so_far = 0;
bool waits_for_others = false;  // a thread of the running block, in this round: see let_others_run

bool is_next_round(void* round) { return *static_cast<uint64_t*>(round) != rounds_so_far; }

// Runs each of the running block's warps but `late` once, which may be none of them; whether any
// could go on.
bool run_warps(int late) {
  ++rounds_so_far;
  waits_for_others = false;
  int order[MAX_WARPS];
  bool any = false;
  shuffle_order(order, warp_count);
  for (int i = 0; i < warp_count && !abandoned; ++i)
    if (order[i] != late) any |= run_warp(order[i]);
  return any;
}

// Runs each block of the cluster until none of its threads can go on, or one of them waits for
// another process, which may wait for the cluster's other blocks; in random order it may stop before
// that, and only where `all` have their turn. Whether any thread could go on.
bool run_blocks_in_turn(int late, bool all) {
  int order[MAX_CLUSTER];
  bool any = false;
  shuffle_order(order, cluster_size);
  for (int b = 0; b < cluster_size && !abandoned; ++b) {
    const int rank = order[b];
    if (!blocks[rank].alive) continue;
    uint64_t rounds = UINT64_MAX;
    if (request.order == 2 && (rounds = next_random() % 4) == 0 && all) rounds = 1;
    if (rounds == 0) continue;
    enter_block(rank);
    while (rounds-- > 0 && block->alive && !abandoned && run_warps(late - rank * warp_count)) {
      any = true;
      if (waits_for_others) break;
    }
  }
  return any;
}

void run_cluster(uint64_t index) {
  random_state = request.seed * 0x2545f4914f6cdd1dull + index + 1;
  if constexpr (OBSERVE) observe::start_clocks();
  start_cluster_barrier();
  for (int rank = 0; rank < cluster_size; ++rank)
    start_block(rank, index * static_cast<uint64_t>(cluster_size) + static_cast<uint64_t>(rank));

  // The warps of a cluster are numbered through, and one of them goes on only where no other can.
  const int late = request.order == 3
                       ? static_cast<int>(request.seed % (cluster_size * warp_count))
                       : -1;
  const auto alive = [] {
    int threads_left = 0;
    for (int rank = 0; rank < cluster_size; ++rank) threads_left += blocks[rank].alive;
    return threads_left > 0;
  };
  bool all = true;
  while (alive() && !abandoned) {
    bool any = cluster_size == 1 ? run_warps(late) : run_blocks_in_turn(late, all);
    if (late >= 0 && !any && !abandoned) {
      enter_block(late / warp_count);
      any = run_warp(late % warp_count);
    }
    const bool nobody = !any && all;
    all = !any;  // where nobody went on of those who had a turn, the others have one
    if (nobody && !abandoned && alive()) {
      report_deadlock();
      abandoned = true;
      control->stop.store(1);
    }
  }
  current = nullptr;
  for (int rank = 0; rank < cluster_size; ++rank) {
    enter_block(rank);
    if constexpr (OBSERVE) observe::end_block();
  }
}

uint64_t nth_cluster(uint64_t n, uint64_t total) {
  if (request.order == 0 || request.order == 3) return n;
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

}  // namespace

void let_others_run(Site site) {
  uint64_t round = rounds_so_far;
  waits_for_others = true;
  wait_until(is_next_round, &round, "a flag of another process", site);
}

void run_blocks() {
  const dim3 g = launch_now->grid;
  const uint64_t total = uint64_t(g.x) * g.y * g.z / static_cast<uint64_t>(cluster_size);
  while (!control->stop.load()) {
    const uint64_t n = control->next_cluster.fetch_add(1);
    if (n >= total) break;
    run_cluster(nth_cluster(n, total));
  }
}

}  // namespace tcgemm::simulator
