// A program that starts the leaders of runs (processes.cpp) for one caller, one after the other.
//
// It loads a kernel's library once and forks a process for each run. It holds little else, so that a
// fork takes a tenth of a millisecond, and what a kernel's mistakes destroy is a fork's memory alone.
// Its standard input is a socket to the caller; when the caller ends, it ends.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "fork_server.hpp"

using namespace tcgemm::simulator;

namespace {

constexpr int CALLER = 0;
using Lead = void (*)(int file);

// The number of bytes of the path; 0 where the caller has ended.
ssize_t receive(char (&path)[MAX_PATH], int (&files)[NUM_FILES]) {
  for (int& file : files) file = -1;
  iovec text{path, sizeof(path) - 1};
  alignas(cmsghdr) char attached[CMSG_SPACE(sizeof(files))];
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = attached;
  message.msg_controllen = sizeof(attached);
  ssize_t bytes;
  do {
    bytes = recvmsg(CALLER, &message, MSG_CMSG_CLOEXEC);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) return 0;
  path[bytes] = '\0';
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_len != CMSG_LEN(sizeof(files))) return 0;
  std::memcpy(files, CMSG_DATA(header), sizeof(files));
  return bytes;
}

Lead leader_of(const char* path) {
  static std::map<std::string, Lead> known;
  Lead& lead = known[path];
  if (!lead) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library) lead = reinterpret_cast<Lead>(dlsym(library, "tcgemm_lead"));
  }
  return lead;
}

// Waits for it, and ends with it where the caller ends first.
int status_of(pid_t leader, const sigset_t& awake) {
  for (;;) {
    int status = 0;
    if (waitpid(leader, &status, WNOHANG) == leader) return status;
    pollfd end{CALLER, POLLRDHUP, 0};
    if (ppoll(&end, 1, nullptr, &awake) > 0) {
      kill(leader, SIGKILL);
      _exit(0);
    }
  }
}

}  // namespace

int main() {
  sigset_t child, awake;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &awake);  // but in ppoll
  sigdelset(&awake, SIGCHLD);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGCHLD, &action, nullptr);
  signal(SIGINT, SIG_IGN);  // of a terminal: it is the caller who decides what ends
  void* frames[1];
  backtrace(frames, 1);  // loads what a leader that crashes asks for its callers

  char path[MAX_PATH];
  int files[NUM_FILES];
  while (receive(path, files)) {
    const Lead lead = leader_of(path);
    const pid_t leader = lead ? fork() : -1;
    if (leader == 0) {
      if (fchdir(files[FOLDER]) != 0) { /* a folder that is gone: the kernel has no use for it */ }
      dup2(files[OUTPUT], STDOUT_FILENO);
      dup2(files[ERRORS], STDERR_FILENO);
      for (int file : {FOLDER, OUTPUT, ERRORS}) close(files[file]);
      dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), CALLER);
      lead(files[MEMORY]);
    }
    for (int file : files) close(file);
    if (leader < 0) return 1;
    const int status = status_of(leader, awake);
    if (send(CALLER, &status, sizeof(status), MSG_NOSIGNAL) != sizeof(status)) return 0;
  }
  return 0;
}
