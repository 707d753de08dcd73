// When the observation of a run, a launch and a block begins and ends. What it sees is in the other
// files that observe.hpp names.
#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

void start_run() {
  start_races();
  if (request.check && c_writers)
    for (int64_t i = 0; i < elements_of_c(); ++i) c_writers[i] = -std::abs(c_writers[i]);
  start_traces();
  start_launch_timeline();
}

void start_block() {
  start_block_races();
  start_block_requests();
  ++worker->counters.blocks;
  worker->counters.threads += static_cast<uint64_t>(thread_count);
  start_block_trace();
  start_block_timeline();
}

void enter_block() {
  enter_block_races();
  enter_block_timeline();
}

void end_block() {
  for (int w = 0; w < warp_count; ++w) converge(w);
  end_block_trace();
  end_block_timeline();
}

void end_launch() { model_launch(); }

void end_run() {
  if (control->stop.load()) return;
  const Operand& c = operands[C_OPERAND];
  if (request.check && c.decodable) {
    int64_t missing = 0, first = -1;
    for (int64_t i = 0; i < elements_of_c(); ++i) {
      if (c_writers[i]) continue;
      if (first < 0) first = i;
      ++missing;
    }
    if (missing) {
      if (Finding* f = report(Kind::not_written, 0, C_OPERAND)) {
        f->row = first / c.cols;
        f->col = first % c.cols;
        f->times = missing;
      }
    }
  }
  flush_l2();
}

}  // namespace observe
}  // namespace tcgemm::simulator
