// What threads do together: barriers of a block, and meetings of a warp, at which the last lane to
// arrive acts for all.
#include <algorithm>

#include "engine.hpp"

namespace tcgemm::simulator {

namespace {

struct NamedBarrier {
  int arrived, needed;
  uint64_t warps, waiting;  // those that arrived, those that wait
  uint64_t clock;           // of the last one to arrive without waiting
};

struct Barriers {
  int arrived, sum, result;  // of __syncthreads
  NamedBarrier named[16];
};
PerBlock<Barriers> barriers;

void release_barrier() {
  Barriers& all = barriers.now();
  all.result = all.sum;
  all.sum = all.arrived = 0;
  const Thread* first = nullptr;
  uint64_t waiting = 0;
  for (int i = 0; i < thread_count; ++i) {
    Thread& t = threads[i];
    if (t.state != State::barrier) continue;
    t.state = State::ready;
    waiting |= 1ull << t.warp;
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
    observe::waits_for_each_other(waiting, 0, first ? first->site.line : 0);
  }
}

int barrier(int value, Site site, uint64_t pc) {
  Thread& t = *current;
  t.site = site;
  t.pc = pc;
  t.state = State::barrier;
  Barriers& all = barriers.now();
  all.sum += value;
  if (++all.arrived == block->alive) {
    if constexpr (OBSERVE) {
      if (request.check && block->alive != thread_count) {
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
  return all.result;
}

void arrive(int id, int count, bool wait, Site site, uint64_t pc) {
  Thread& t = *current;
  NamedBarrier& b = barriers.now().named[id & 15];
  if (OBSERVE && request.check) {
    if (id < 0 || id > 15) report_misuse(Misuse::barrier_number, pc, site, id);
    if (count <= 0 || count % 32) report_misuse(Misuse::barrier_warps, pc, site, count);
    if (b.arrived && b.needed != count)
      report_misuse(Misuse::barrier_counts, pc, site, count, b.needed);
  }
  b.needed = count;
  b.warps |= 1ull << t.warp;
  t.site = site;
  t.pc = pc;
  ++b.arrived;
  if (wait) {
    b.waiting |= 1ull << t.warp;
    t.state = State::named_barrier;
    t.named_barrier = static_cast<int16_t>(id & 15);
  } else if constexpr (OBSERVE) {
    b.clock = std::max(b.clock, observe::clock_of(t.warp));
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
      observe::waits_for_each_other(b.waiting, b.clock, site.line);
    }
    b = {};
  } else if (wait) {
    yield_thread();
  }
}

}  // namespace

void start_block_barriers() { barriers.now() = {}; }

void leave_block() {
  Thread& t = *current;
  if (--block->alive > 0 && barriers.now().arrived == block->alive) {
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
  if (block->alive == 0) {
    hopper_end_block();
    if constexpr (OBSERVE) observe::leaves_cluster();
  }
  leave_cluster();
}

__attribute__((noinline)) void sync_threads(Site site) { barrier(0, site, CALLER); }
__attribute__((noinline)) int sync_threads_count(int predicate, Site site) {
  return barrier(predicate != 0, site, CALLER);
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
        else if (OBSERVE && request.check && s.from >= 0 && s.from < 32)
          report_misuse(Misuse::shuffle_source, t.pc, t.site, s.from,
                        static_cast<int32_t>(t.mask));
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
    case Meeting::mma: {
      if constexpr (OBSERVE) {
        const FragmentKind kind = static_cast<MmaArguments*>(t.arguments)->a_kind;
        observe::multiplies(t.warp, kind.m, kind.n, kind.k * element_bytes(kind.element),
                            t.site.line);
      }
      multiply(lanes);
      break;
    }
    case Meeting::mma_ptx: {
      if constexpr (OBSERVE) {
        const auto& m = *static_cast<MmaPtxArguments*>(t.arguments);
        observe::multiplies(t.warp, 16, 8, m.k * element_bytes(m.in), t.site.line);
      }
      multiply_ptx(lanes);
      break;
    }
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

}  // namespace tcgemm::simulator
