// A run as its caller sees it: operands are copied to a file in memory, a leader (processes.cpp)
// computes, and what it found and wrote is copied back.
//
// The leader is forked by a process that holds little (fork_server.cpp), because a fork copies the
// page tables of all that the forking process holds, and the caller holds Python and torch.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "fork_server.hpp"
#include "run.hpp"

namespace tcgemm::simulator {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The file in memory with the request's operands. `arena` is null where there was no memory.
struct Memory {
  int file = -1;
  Arena* arena = nullptr;
  size_t writers_bytes = 0;

  explicit Memory(const Request& asked) {
    uint64_t bytes = ARENA_BYTES + PAGE;  // a page that nobody may touch, and then operands
    const auto take = [&bytes](uint64_t wanted) {
      const uint64_t at = bytes;
      bytes += (wanted + PAGE - 1) & ~(PAGE - 1);
      return at;
    };
    uint64_t operand_at[NUM_OPERANDS] = {};
    for (int i = 0; i < NUM_OPERANDS; ++i) {
      operands[i] = {};
      if (!asked.operands[i].data || (i == C_IN_OPERAND && c_in_is_c())) continue;
      describe_operand(operands[i], asked.operands[i]);
      operand_at[i] = take(operands[i].map_bytes);
    }
    const Operand& c = operands[C_OPERAND];
    if (OBSERVE) writers_bytes = static_cast<size_t>(c.batches * c.rows * c.cols) * 4;
    const uint64_t writers_at = OBSERVE ? take(writers_bytes) : 0;
    const size_t path_bytes = asked.timeline_path ? std::strlen(asked.timeline_path) + 1 : 0;
    const uint64_t timeline_path_at = path_bytes ? take(path_bytes) : 0;
    const auto environment_bytes = static_cast<uint64_t>(asked.environment_bytes);
    const uint64_t environment_at = take(environment_bytes);

    file = memfd_create("tcgemm", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return;
    void* const map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) return;
    arena = static_cast<Arena*>(map);  // all zeros, as a new Control is
    char* const start = static_cast<char*>(map);
    arena->request = asked;
    arena->control.worker_count = 1;
    arena->bytes = bytes;
    arena->writers_at = writers_at;
    arena->timeline_path_at = timeline_path_at;
    arena->environment_at = environment_at;
    arena->environment_bytes = environment_bytes;
    if (path_bytes) std::memcpy(start + timeline_path_at, asked.timeline_path, path_bytes);
    if (environment_bytes) std::memcpy(start + environment_at, asked.environment, environment_bytes);
    for (int i = 0; i < NUM_OPERANDS; ++i) {
      arena->operand_at[i] = operand_at[i];
      if (!operand_at[i]) continue;
      place_operand(operands[i], asked.operands[i], start + operand_at[i]);
      fill_operand(operands[i], asked.operands[i]);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  ~Memory() {
    if (arena) munmap(arena, arena->bytes);
    if (file >= 0) close(file);
  }
};

// Whether the fork server behind that socket has been sent the request of that file, with where the
// caller is and writes to.
bool ask_fork_server(int server, int memory) {
  Dl_info library;
  if (!dladdr(reinterpret_cast<const void*>(&find_image), &library)) return false;
  const int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto or_nowhere = [nowhere](int file) { return fcntl(file, F_GETFD) < 0 ? nowhere : file; };
  int files[NUM_FILES];
  files[MEMORY] = memory;
  files[FOLDER] = here < 0 ? nowhere : here;
  files[OUTPUT] = or_nowhere(STDOUT_FILENO);
  files[ERRORS] = or_nowhere(STDERR_FILENO);

  iovec path{const_cast<char*>(library.dli_fname), std::strlen(library.dli_fname)};
  alignas(cmsghdr) char attached[CMSG_SPACE(sizeof(files))] = {};
  msghdr message{};
  message.msg_iov = &path;
  message.msg_iovlen = 1;
  message.msg_control = attached;
  message.msg_controllen = sizeof(attached);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(files));
  std::memcpy(CMSG_DATA(header), files, sizeof(files));
  ssize_t sent = -1;
  if (path.iov_len < MAX_PATH) {
    do {
      sent = sendmsg(server, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
  }
  if (here >= 0) close(here);
  if (nowhere >= 0) close(nowhere);
  return sent > 0;
}

constexpr int LOST = -1;  // what a leader left whose end nobody can be asked about

// Who computes: a child of the fork server behind that socket, or of this process where it is -1.
struct Leader {
  int server;
  pid_t child = -1;

  bool start(const Memory& memory) {
    if (server >= 0) return ask_fork_server(server, memory.file);
    child = fork();
    if (child == 0) lead(memory.file);
    return child > 0;
  }

  // Whether it has ended within that time, and its status.
  bool has_ended(double seconds, int* status) {
    if (server >= 0) {
      pollfd end{server, POLLIN, 0};
      if (poll(&end, 1, static_cast<int>(std::ceil(std::min(seconds, 1e6) * 1e3))) <= 0) return false;
      if (recv(server, status, sizeof(*status), 0) != sizeof(*status)) *status = LOST;
      return true;
    }
    const double start = now();
    for (long pause = 20'000;; pause = std::min(pause * 2, 2'000'000L)) {
      const pid_t done = waitpid(child, status, WNOHANG);
      if (done < 0 && errno != EINTR) *status = LOST;
      if (done == child || *status == LOST) return true;
      if (now() - start > seconds) return false;
      timespec t{0, pause};
      nanosleep(&t, nullptr);
    }
  }
};

void send_all(int signal) {
  for (int i = control->worker_count - 1; i >= 0; --i)
    if (control->workers[i].pid > 0) kill(control->workers[i].pid, signal);
}

// Waits for the leader; ends every worker where the time is up. Returns the leader's status.
int wait_for(Leader& leader, double timeout_s, bool* timed_out) {
  int status = 0;
  const double start = now();
  const auto ended_by = [&](double time) {
    while (now() - start <= time)
      if (leader.has_ended(time - (now() - start), &status)) return true;
    return false;
  };
  if (ended_by(timeout_s)) return status;
  *timed_out = true;
  control->stop.store(1);
  send_all(SIGUSR1);  // they say where they are
  for (double patience = 2; patience < 8; ++patience) {
    if (ended_by(timeout_s + patience)) return status;
    send_all(SIGKILL);
  }
  return LOST;
}

}  // namespace
}  // namespace tcgemm::simulator

using namespace tcgemm::simulator;

// Runs the kernel of this library on the request's operands. Returns 0, or a negative number where
// nothing could be run: -1 no memory, -2 no process, -3 no thread-local storage, -4 the fork server
// does not answer.
extern "C" __attribute__((visibility("default"))) int tcgemm_simulate(const Request* asked,
                                                                      Result* result, int server) {
  std::memset(static_cast<void*>(result), 0, sizeof(*result));
  request = *asked;
  find_image();
  result->image_base = reinterpret_cast<uint64_t>(image_low);
  Memory memory(request);
  if (!memory.arena) return -1;
  control = &memory.arena->control;

  Leader leader{server};
  if (!leader.start(memory)) return server >= 0 ? -4 : -2;
  bool timed_out = false;
  const int status = wait_for(leader, request.timeout_s, &timed_out);
  if (status == LOST) return timed_out || server < 0 ? -2 : -4;
  if (WIFEXITED(status) && WEXITSTATUS(status) >= 4) return WEXITSTATUS(status) == 4 ? -1 : -3;

  result->launch_error = control->launch_error;
  result->launch = control->launch;
  result->refused = control->refused;
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
  for (int i = 0; i < NUM_OPERANDS; ++i)
    if (operands[i].map && is_result(i))
      copy_elements(operands[i], static_cast<char*>(request.operands[i].data), operands[i].data);
  if (request.writers && memory.writers_bytes) {
    const auto* written = reinterpret_cast<const int32_t*>(
        reinterpret_cast<const char*>(memory.arena) + memory.arena->writers_at);
    for (size_t i = 0; i < memory.writers_bytes / 4; ++i)
      request.writers[i] = std::abs(written[i]) & ~BY_ATOMIC;
  }
  return 0;
}
