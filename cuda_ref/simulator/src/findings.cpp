// Findings and counts: where a worker notes them, and how those of all workers become one result.
#include "engine.hpp"

namespace tcgemm::simulator {

Position position_of(const Thread& thread) {
  const uint3 index = blocks[thread.rank].index;
  return {{index.x, index.y, index.z},
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

Finding* report_misuse(Misuse what, uint64_t pc, Site site, int64_t number, int32_t other) {
  Finding* f = report(Kind::misuse, pc);
  if (!f) return nullptr;
  f->signal = static_cast<int32_t>(what);
  f->site = site;
  f->offset = number;
  f->bytes = other;
  return f;
}

void belongs_to(Finding* f, int rank) {
  if (!f) return;
  const uint3 index = blocks[rank].index;
  f->has_owner = 1;
  f->owner[0] = index.x;
  f->owner[1] = index.y;
  f->owner[2] = index.z;
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
    for (int i = 0; i < from.finding_count; ++i) {
      Finding f = from.findings[i];
      for (Site* site : {&f.site, &f.other_site})
        if (site->file) site->file = image_low + (site->file - control->image);
      add_finding(result, f);
    }
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

}  // namespace tcgemm::simulator
