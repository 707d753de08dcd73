// The processes of a run.
//
// A leader calls the launcher; each launch forks helpers, and all of them take blocks from one counter.
// Operands lie in mappings shared by these processes, so a kernel that crashes, hangs or writes where
// it should not harms nobody's memory but its own.
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "run.hpp"

#include "host/gemm.cuh"

#undef alignas
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

extern "C" __attribute__((visibility("hidden"))) thread_local unsigned char
    tcgemm_dynamic_shared[];

// Whether the kernel has global variables that it may write. Each process has its own, so one process
// runs all blocks then. The linked assembly sets it (../build.py).
extern "C" __attribute__((visibility("hidden"))) const unsigned char tcgemm_has_variables;
// Blocks of a cluster of a kernel whose launch does not say; from there, too, or the kernel's file.
extern "C" __attribute__((visibility("hidden"))) const unsigned tcgemm_declared_cluster;

namespace tcgemm::simulator {

Request request;
Control* control;
Worker* worker;
Operand operands[NUM_OPERANDS];
int32_t* c_writers;

namespace {

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
    const auto at = static_cast<const char*>(info->si_addr);
    const bool full = signal == SIGSEGV && current && at >= current->stack - 4096 &&
                      at < current->stack + 4096;
    Finding* f = full ? report_misuse(Misuse::stack, where, {}, STACK_BYTES / 1024)
                      : report(timeout ? Kind::timeout : Kind::crash, where);
    if (f) {
      f->at.block[0] = block_index.x;
      f->at.block[1] = block_index.y;
      f->at.block[2] = block_index.z;
      if (!full) {
        f->signal = signal;
        f->offset = static_cast<int64_t>(reinterpret_cast<uint64_t>(info->si_addr));
      }
      // Between two threads no caller is known: then it is where the thread waited.
      if (timeout && current) f->site = current->site;
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

int find_image_in(dl_phdr_info* info, size_t, void*) {
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
  return 1;
}

}  // namespace

bool find_image() {
  shared_low = nullptr;
  dl_iterate_phdr(find_image_in, nullptr);
  return shared_low != nullptr;
}

int run_grid(const Launch& launch) {
  const dim3 g = launch.grid, b = launch.block;
  const uint64_t block_threads = uint64_t(b.x) * b.y * b.z;
  const uint64_t total = uint64_t(g.x) * g.y * g.z;
  const unsigned cluster = launch.cluster ? launch.cluster : tcgemm_declared_cluster;
  if (block_threads == 0 || block_threads > MAX_THREADS || b.x > 1024 || b.y > 1024 || b.z > 64 ||
      total == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || cluster == 0 ||
      cluster > MAX_CLUSTER || g.x % cluster != 0 || launch.shared_bytes > MAX_SHARED) {
    control->refused = {{g.x, g.y, g.z}, {b.x, b.y, b.z}, 0, launch.shared_bytes, 0, cluster, 0};
    return launch.shared_bytes > MAX_SHARED ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
  }

  launch_now = &launch;
  params_low = static_cast<char*>(launch.params);
  params_high = params_low + launch.params_bytes;
  grid_dim = g;
  block_dim = b;
  thread_count = static_cast<int>(block_threads);
  warp_count = (thread_count + 31) / 32;
  dynamic_shared_bytes = launch.shared_bytes;
  cluster_size = static_cast<int>(cluster);
  for (int rank = 0; rank < cluster_size; ++rank) {
    for (int i = 0; i < thread_count; ++i) {
      Thread& t = threads_of.of(rank)[static_cast<size_t>(i)];
      t.linear = i;
      t.warp = static_cast<uint8_t>(i / 32);
      t.lane = static_cast<uint8_t>(i % 32);
      t.rank = static_cast<uint8_t>(rank);
      t.cluster_warp = static_cast<uint8_t>(rank * warp_count + i / 32);
      t.indices.thread = {i % b.x, i / b.x % b.y, i / b.x / b.y};
    }
    for (int w = 0; w < warp_count; ++w) {
      const int left = thread_count - 32 * w;
      warps_of.of(rank)[static_cast<size_t>(w)].present = left >= 32 ? ~0u : (1u << left) - 1;
    }
  }
  control->launch = {{g.x, g.y, g.z}, {b.x, b.y, b.z},
                     static_cast<uint64_t>(request.shared_static),
                     launch.shared_bytes, relative_pc(launch.kernel),
                     std::max(control->launch.cluster, cluster), 0};
  control->next_cluster.store(0);
  prepare_stacks();
  if constexpr (OBSERVE) observe::start_run();

  const uint64_t most = tcgemm_has_variables ? 1 : std::min<uint64_t>(request.workers, MAX_WORKERS);
  const int wanted = static_cast<int>(std::min<uint64_t>(most, total / cluster));
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

// Maps what the caller left in the file: the request, and the operands, of which this process and its
// helpers have inputs for themselves.
bool map(int file) {
  struct stat found;
  if (fstat(file, &found) != 0) return false;
  const auto bytes = static_cast<size_t>(found.st_size);
  void* const all = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (all == MAP_FAILED) return false;
  char* const start = static_cast<char*>(all);
  mprotect(start + ARENA_BYTES, PAGE, PROT_NONE);
  Arena& arena = *static_cast<Arena*>(all);
  request = arena.request;
  control = &arena.control;
  uint64_t sectors = 0;
  for (int i = 0; i < NUM_OPERANDS; ++i) {
    Operand& o = operands[i];
    o = {};
    const uint64_t at = arena.operand_at[i];
    if (!at) continue;
    describe_operand(o, request.operands[i]);
    place_operand(o, request.operands[i], start + at);
    o.first_sector = sectors;
    sectors += o.map_bytes / 32;
    if (!is_result(i) && mmap(o.map, o.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
                              file, static_cast<off_t>(at)) == MAP_FAILED)
      return false;
  }
  c_writers = arena.writers_at ? reinterpret_cast<int32_t*>(start + arena.writers_at) : nullptr;
  request.timeline_path = arena.timeline_path_at ? start + arena.timeline_path_at : nullptr;
  static std::vector<char*> variables;
  char* const first = start + arena.environment_at;
  for (char* v = first; v < first + arena.environment_bytes; v += std::strlen(v) + 1)
    variables.push_back(v);
  variables.push_back(nullptr);
  environ = variables.data();
  return true;
}

}  // namespace

[[noreturn]] void lead(int file) {
  if (!map(file)) _exit(4);
  become_worker(0);
  // A first access makes the thread-local block exist, so that its address can be asked for.
  *static_cast<volatile unsigned char*>(tcgemm_dynamic_shared) = 0;
  if (!find_image()) _exit(5);
  control->image = image_low;
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
  gemm.aux = static_cast<Aux>(request.aux);
  gemm.compute = static_cast<Compute>(request.compute);
  gemm.mma_m = request.mma_m;
  gemm.mma_n = request.mma_n;
  static_assert(sizeof(Plan) == sizeof(request.plan));
  Plan plan;
  std::memcpy(&plan, request.plan, sizeof(plan));
  gemm.plan = &plan;
  gemm.in = static_cast<DType>(request.dtype_in);
  gemm.out = static_cast<DType>(request.dtype_out);
  control->launch_error = tcgemm_launch(gemm, nullptr);
  if constexpr (OBSERVE) {
    if (control->launch_error == 0) observe::end_run();
  }
  control->leader_done = 1;
  _exit(0);
}

}  // namespace tcgemm::simulator

// What the fork server calls in a process of its own.
extern "C" __attribute__((visibility("default"))) void tcgemm_lead(int file) {
  tcgemm::simulator::lead(file);
}
