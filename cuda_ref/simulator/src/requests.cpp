// What the hardware makes of a warp's accesses: requests, 32-byte sectors, shared-memory wavefronts
// and bank conflicts; and how often the tensor cores were asked.
#include "observe.hpp"

namespace tcgemm::simulator {
namespace observe {

namespace {

constexpr int WGMMA = 2;  // the number of its instruction in MmaCount

// Of each lane, by warp of the block.
PerBlock<std::array<std::array<std::vector<Entry>, 32>, MAX_WARPS>> logs;

void serve_global(const Entry* const* entries, int count) {
  uint64_t sectors[32 * 3];
  int n = 0;
  const Entry& first = *entries[0];
  const Operand& o = operands[first.space];
  const uint64_t base = reinterpret_cast<uint64_t>(o.map);
  uint64_t bytes = 0;
  bool sorted = true;
  for (int i = 0; i < count; ++i) {
    const Entry& e = *entries[i];
    bytes += e.bytes;
    const uint64_t low = (e.address - base) / 32, high = (e.address + e.bytes - 1 - base) / 32;
    for (uint64_t s = low; s <= high; ++s) {
      if (n && sectors[n - 1] == s) continue;
      sorted &= n == 0 || sectors[n - 1] < s;
      sectors[n++] = s;
    }
  }
  if (!sorted) {
    std::sort(sectors, sectors + n);
    n = static_cast<int>(std::unique(sectors, sectors + n) - sectors);
  }
  Counters& c = worker->counters;
  c.global_requests[first.write] += 1;
  c.global_sectors[first.write] += static_cast<uint64_t>(n);
  c.global_bytes[first.write] += bytes;
  c.operand_bytes[first.space] += bytes;
  c.operand_sectors[first.space] += static_cast<uint64_t>(n);
  for (int i = 0; i < n; ++i) trace(o.first_sector + sectors[i], first.write);
}

// Whether each lane reads what the lane `other` away (1 or 2) reads, as far as that one takes part.
bool neighbours_agree(const Entry* const* entries, int count, int other) {
  const Entry* by_lane[32] = {};
  for (int i = 0; i < count; ++i) by_lane[entries[i]->lane] = entries[i];
  for (int i = 0; i < count; ++i) {
    const Entry* neighbour = by_lane[entries[i]->lane ^ other];
    if (neighbour && neighbour->address != entries[i]->address) return false;
  }
  return true;
}

// Words of 4 bytes lie in 32 banks; a wavefront takes one word of each. Vectors of 8 bytes are
// served by half warps, of 16 bytes by quarter warps; loads of which neighbouring lanes share
// theirs, by twice as many lanes at once.
void serve_shared(const Entry* const* entries, int count) {
  const Entry& first = *entries[0];
  int lanes_per_phase = first.bytes <= 4 ? 32 : first.bytes == 8 ? 16 : 8;
  if (!first.write && lanes_per_phase < 32 &&
      (neighbours_agree(entries, count, 1) || neighbours_agree(entries, count, 2)))
    lanes_per_phase *= 2;
  Counters& c = worker->counters;
  c.shared_requests[first.write] += 1;
  int i = 0;
  while (i < count) {
    const int phase = entries[i]->lane / lanes_per_phase;
    uint64_t words[64];
    int n = 0;
    for (; i < count && entries[i]->lane / lanes_per_phase == phase; ++i) {
      const Entry& e = *entries[i];
      c.shared_bytes[first.write] += e.bytes;
      for (uint64_t w = e.address / 4; w <= (e.address + e.bytes - 1) / 4 && n < 64; ++w)
        if (!n || words[n - 1] != w) words[n++] = w;
    }
    std::sort(words, words + n);
    n = static_cast<int>(std::unique(words, words + n) - words);
    uint8_t depth[32] = {};
    int deepest = 0;
    for (int k = 0; k < n; ++k) deepest = std::max<int>(deepest, ++depth[words[k] & 31]);
    c.shared_wavefronts[first.write] += static_cast<uint64_t>(deepest);
    c.shared_ideal[first.write] += static_cast<uint64_t>((n + 31) / 32);
  }
}

// Sorts, and counts those that differ.
int distinct(uint64_t* values, int n) {
  std::sort(values, values + n);
  return static_cast<int>(std::unique(values, values + n) - values);
}

// The shared-memory side of a copy through the L1: quarter warps, in as many passes as lanes share
// a bank's 16 bytes, and in each pass a wavefront per line of 128 bytes that it reads.
void write_through_l1(const Entry* const* entries, int count) {
  Counters& c = worker->counters;
  for (int i = 0; i < count;) {
    const int quarter = entries[i]->lane / 8;
    const int start = i;
    for (; i < count && entries[i]->lane / 8 == quarter; ++i) {}
    int pass_of[8], passes = 1;
    for (int e = start; e < i; ++e) {
      int& pass = pass_of[e - start] = 0;
      for (int before = start; before < e; ++before) {
        const uint64_t a = entries[before]->address / 16, b = entries[e]->address / 16;
        if (a != b && a % 8 == b % 8) pass = std::max(pass, pass_of[before - start] + 1);
      }
      passes = std::max(passes, pass + 1);
    }
    int wavefronts = 0;
    for (int pass = 0; pass < passes; ++pass) {
      uint64_t lines[8];
      int n = 0;
      for (int e = start; e < i; ++e)
        if (pass_of[e - start] == pass) lines[n++] = entries[e]->from / 128;
      wavefronts += distinct(lines, n);
    }
    c.shared_wavefronts[1] += static_cast<uint64_t>(wavefronts);
    c.shared_ideal[1] += static_cast<uint64_t>(wavefronts - (passes - 1));
  }
}

// A copy past the L1: sectors go from the L2 to their place in shared memory. One whose halves lie
// in two aligned 32-byte places there is fetched for each of them: rows that begin at a multiple of
// 16 bytes but not of 32, a padded tile's odd ones, are fetched twice. A wavefront writes what comes
// from one line to one line of 128 bytes, and of misplaced sectors one half.
void write_past_l1(const Entry* const* entries, int count) {
  uint64_t pieces[32];
  for (int i = 0; i < count; ++i) {
    const uint64_t from = entries[i]->from, to = entries[i]->address;
    const uint64_t half = (to / 16 ^ from / 16) & 1 ? 1 + (from / 16 & 1) : 0;
    pieces[i] = from / 128 << 24 | (to / 128 & 0xfffff) << 4 | half;
  }
  const uint64_t wavefronts = static_cast<uint64_t>(distinct(pieces, count));
  worker->counters.shared_wavefronts[1] += wavefronts;
  worker->counters.shared_ideal[1] += wavefronts;
}

// cp.async: a load of global memory and a store to shared memory in one request.
void serve_copy(const Entry* const* entries, int count) {
  Counters& c = worker->counters;
  const Entry* reading[32];
  int n = 0;
  for (int i = 0; i < count; ++i)
    if (entries[i]->from) reading[n++] = entries[i];
  if (n == 0 || entries[0]->bytes < 16) serve_shared(entries, count);
  if (n == 0) return;
  const bool through_l1 = reading[0]->kind == Entry::copy_through_l1;
  const int operand = operand_at(reinterpret_cast<char*>(reading[0]->from));
  const Operand& o = operands[operand];
  const uint64_t base = reinterpret_cast<uint64_t>(o.map);
  uint64_t sectors[32];
  for (int i = 0; i < n; ++i) {
    const uint64_t place = through_l1 ? 0 : reading[i]->address / 32 & 0xfffff;
    sectors[i] = (reading[i]->from - base) / 32 << 20 | place;
    c.global_bytes[0] += reading[i]->read;
    c.operand_bytes[operand] += reading[i]->read;
  }
  const int fetched = distinct(sectors, n);
  c.global_requests[0] += 1;
  c.global_sectors[0] += static_cast<uint64_t>(fetched);
  c.operand_sectors[operand] += static_cast<uint64_t>(fetched);
  for (int i = 0; i < fetched; ++i) trace(o.first_sector + (sectors[i] >> 20), false);
  if (reading[0]->bytes < 16) return;
  c.shared_requests[1] += 1;
  c.shared_bytes[1] += static_cast<uint64_t>(count) * 16;
  if (through_l1)
    write_through_l1(reading, n);
  else
    write_past_l1(reading, n);
}

}  // namespace

void serve(int warp, const Entry* const* entries, int count) {
  request_passes(warp, *entries[0]);
  if (entries[0]->kind == Entry::commit || entries[0]->kind == Entry::await) return;
  if (entries[0]->kind != Entry::access)
    serve_copy(entries, count);
  else if (entries[0]->space == SHARED)
    serve_shared(entries, count);
  else
    serve_global(entries, count);
}

Entry* keep(const Thread& t, char* address, int bytes, bool write, uint8_t space, uint64_t pc) {
  std::vector<Entry>& log = logs.of(t.rank)[t.warp][t.lane];
  log.push_back({reinterpret_cast<uint64_t>(address), 0,
                                  static_cast<uint32_t>(pc), static_cast<uint8_t>(bytes), space,
                                  t.lane, write, Entry::access, 0});
  return &log.back();
}

void marks_copies(int pending) {
  if (!timeline_runs()) return;
  // Its place in the order of the lanes' accesses is all that counts; no instruction has such a pc.
  const uint8_t lane = current->lane;
  const uint64_t left = pending < 0 ? 0 : static_cast<uint64_t>(pending);
  logs.now()[current->warp][lane].push_back({left, 0, static_cast<uint32_t>(pending + 1), 0, SHARED,
                                             lane, false,
                                             pending < 0 ? Entry::commit : Entry::await, 0});
}

void start_block_requests() {
  for (int w = 0; w < warp_count; ++w)
    for (auto& log : logs.now()[w]) log.clear();
}

// Sorts a warp's requests such that each comes after those that its lanes made before it: a time line
// is about what waits for what, and a count is not.
static void in_the_order_of_lanes(std::vector<std::vector<const Entry*>>* requests,
                                  const std::vector<Entry>* const* lanes, int n) {
  const std::vector<Entry>* by_lane[32] = {};
  std::vector<size_t> made[32];  // by lane: its requests, in its order
  for (int i = 0; i < n; ++i) {
    const uint8_t lane = lanes[i]->front().lane;
    by_lane[lane] = lanes[i];
    made[lane].resize(lanes[i]->size());
  }
  for (size_t r = 0; r < requests->size(); ++r)
    for (const Entry* e : (*requests)[r])
      made[e->lane][static_cast<size_t>(e - by_lane[e->lane]->data())] = r;
  std::vector<std::vector<const Entry*>> sorted;
  std::vector<size_t> reached(requests->size());  // lanes whose next request it is
  std::vector<bool> served(requests->size());
  size_t next[32] = {};
  for (int lane = 0; lane < 32; ++lane)
    if (by_lane[lane]) ++reached[made[lane][0]];
  while (sorted.size() < requests->size()) {
    // What all its lanes have come to; where lanes cross, what the first of them has.
    size_t chosen = requests->size();
    for (int lane = 0; lane < 32; ++lane) {
      if (next[lane] == made[lane].size()) continue;
      const size_t r = made[lane][next[lane]];
      const bool by_all = reached[r] == (*requests)[r].size();
      if (by_all || chosen == requests->size()) chosen = r;
      if (by_all) break;
    }
    served[chosen] = true;
    for (int lane = 0; lane < 32; ++lane) {
      const size_t before = next[lane];
      while (next[lane] < made[lane].size() && served[made[lane][next[lane]]]) ++next[lane];
      if (next[lane] != before && next[lane] < made[lane].size()) ++reached[made[lane][next[lane]]];
    }
    sorted.push_back((*requests)[chosen]);
  }
  *requests = std::move(sorted);
}

void converge(int w) {
  if (!request.count) return;
  auto& lanes = logs.now()[w];
  const std::vector<Entry>* first = nullptr;
  const std::vector<Entry>* some[32];
  int n = 0;
  bool same = true;
  for (auto& log : lanes) {
    if (log.empty()) continue;
    if (!first) first = &log;
    same &= log.size() == first->size();
    some[n++] = &log;
  }
  if (!first) return;
  for (int i = 1; i < n && same; ++i)
    for (size_t e = 0; e < first->size() && same; ++e)
      same = (*some[i])[e].pc == (*first)[e].pc && (*some[i])[e].space == (*first)[e].space;
  const Entry* entries[32];
  if (same) {
    for (size_t e = 0; e < first->size(); ++e) {
      for (int i = 0; i < n; ++i) entries[i] = &(*some[i])[e];
      serve(w, entries, n);
    }
  } else {
    // Some lanes went another way: an instruction's n-th execution is one request of the lanes
    // that reached it.
    struct Key {
      uint32_t pc, occurrence;
      const Entry* entry;
    };
    std::vector<Key> keys;
    std::vector<std::pair<uint32_t, uint32_t>> met;
    for (int i = 0; i < n; ++i) {
      met.clear();
      for (const Entry& e : *some[i]) {
        uint32_t occurrence = 0;
        auto at = std::find_if(met.begin(), met.end(),
                               [&](const auto& pair) { return pair.first == e.pc * 4 + e.space; });
        if (at == met.end())
          met.push_back({e.pc * 4 + e.space, 0});
        else
          occurrence = ++at->second;
        keys.push_back({e.pc * 4 + e.space, occurrence, &e});
      }
    }
    std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
      return a.occurrence != b.occurrence ? a.occurrence < b.occurrence : a.pc < b.pc;
    });
    std::vector<std::vector<const Entry*>> requests;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i == 0 || keys[i].pc != keys[i - 1].pc || keys[i].occurrence != keys[i - 1].occurrence)
        requests.emplace_back();
      requests.back().push_back(keys[i].entry);
    }
    if (timeline_runs()) in_the_order_of_lanes(&requests, some, n);
    for (const auto& entries_of_one : requests)
      serve(w, entries_of_one.data(), static_cast<int>(entries_of_one.size()));
  }
  for (auto& log : lanes) log.clear();
}

void count_mma(int m, int n, int k, Element in, Element out, int instruction) {
  if (request.count && instruction == WGMMA) {
    // Each of four warps asks; m rows of A and n columns of B come, 32 bytes of K each.
    const uint64_t wavefronts = static_cast<uint64_t>(m + n) * 32 / 128;
    worker->counters.shared_requests[0] += 4;
    worker->counters.shared_wavefronts[0] += wavefronts;
    worker->counters.shared_ideal[0] += wavefronts;
  }
  const MmaCount kind{m, n, k, static_cast<int32_t>(in), static_cast<int32_t>(out), instruction, 0};
  for (MmaCount& c : worker->mma) {
    if (c.count && std::memcmp(&c, &kind, offsetof(MmaCount, count)) != 0) continue;
    const uint64_t count = c.count + 1;
    c = kind;
    c.count = count;
    return;
  }
}

}  // namespace observe
}  // namespace tcgemm::simulator
