// Threads as coroutines: a stack each, a scheduler that runs a block's warps in a legal order, and
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

Thread threads[MAX_THREADS];
Warp warps[MAX_WARPS];
Thread* current;
int thread_count, warp_count;
uint64_t block_number;
size_t dynamic_shared_bytes;
char *shared_low, *shared_high, *image_low, *image_high, *params_low, *params_high;

const Launch* launch_now;
int alive;
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
  start_block_barriers();
  hopper_start_block();
  if constexpr (OBSERVE) observe::start_block();

  const int late = request.order == 3 ? static_cast<int>(request.seed % warp_count) : -1;
  int order[MAX_WARPS];
  while (alive > 0 && !abandoned) {
    bool any = false;
    shuffle_order(order, warp_count);
    for (int i = 0; i < warp_count && !abandoned; ++i)
      if (order[i] != late) any |= run_warp(order[i]);
    if (late >= 0 && !any && !abandoned) any = run_warp(late);
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

void run_blocks() {
  const dim3 g = launch_now->grid;
  const uint64_t total = uint64_t(g.x) * g.y * g.z;
  while (!control->stop.load()) {
    const uint64_t n = control->next_block.fetch_add(1);
    if (n >= total) break;
    run_block(nth_block(n, total));
  }
}

}  // namespace tcgemm::simulator
