// What a caller sends to the fork server: the library's path, and these files with it. The answer is
// the leader's status, as waitpid gives it.
#pragma once

namespace tcgemm::simulator {

enum { MEMORY, FOLDER, OUTPUT, ERRORS, NUM_FILES };
constexpr int MAX_PATH = 4096;

}  // namespace tcgemm::simulator
