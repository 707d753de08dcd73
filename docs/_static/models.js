// The models of the explorers: the same rules as tcgemm/tools/simulate/tile_order.py (the L2),
// docs/site/pictures/models.py (banks) and docs/foundations/async_copies.md (a ring of stages).
// tests/test_explorers.py holds them against those.
"use strict";

// [tile row, tile column] in the order of the grid: row after row where groupM is 0.
function visit(tilesM, tilesN, groupM) {
  const order = [];
  if (!groupM) {
    for (let m = 0; m < tilesM; m++) for (let n = 0; n < tilesN; n++) order.push([m, n]);
    return order;
  }
  for (let first = 0; first < tilesM; first += groupM)
    for (let n = 0; n < tilesN; n++)
      for (let m = first; m < Math.min(first + groupM, tilesM); m++) order.push([m, n]);
  return order;
}

// Tiles that run at once walk along K in step; what was read last stays in the L2. Bytes of A and B.
function traffic({M, N, K, blockM, blockN, groupM, places, l2Bytes, itemsize = 2}) {
  const STEP_BYTES = 65536;
  const tiles = visit(Math.ceil(M / blockM), Math.ceil(N / blockN), groupM);
  const step = Math.max(1, Math.floor(STEP_BYTES / (Math.max(blockM, blockN) * itemsize)));
  const aBytes = blockM * step * itemsize, bBytes = blockN * step * itemsize;
  const steps = Math.ceil(K / step), held = new Map();
  let used = 0, read = 0, hit = 0;
  const touch = (key, size) => {
    read += size;
    if (held.has(key)) {
      hit += size;
      held.delete(key);  // a Map keeps the order of insertion: the last used comes last
      held.set(key, size);
      return;
    }
    held.set(key, size);
    used += size;
    while (used > l2Bytes) {
      const [oldest, bytes] = held.entries().next().value;
      held.delete(oldest);
      used -= bytes;
    }
  };
  for (let start = 0; start < tiles.length; start += places) {
    const running = tiles.slice(start, start + places);
    for (let k = 0; k < steps; k++)
      for (const [m, n] of running) {
        touch(2 * (m * steps + k), aBytes);
        touch(2 * (n * steps + k) + 1, bBytes);
      }
  }
  return {hitRate: hit / read, readBytes: read, dramBytes: read - hit,
          waves: Math.ceil(tiles.length / places)};
}

// Where unit `unit` (16 bytes) of row `row` lies, in bytes.
function placeOf(row, unit, rowBytes, padBytes, xor) {
  return row * (rowBytes + padBytes) + 16 * (xor ? unit ^ (row % 8) : unit);
}

// Passes that eight 16-byte reads of shared memory take: words of one bank go one by one.
function passes(addresses) {
  const banks = new Map();
  for (const address of addresses)
    for (let word = address / 4; word < address / 4 + 4; word++) {
      if (!banks.has(word % 32)) banks.set(word % 32, new Set());
      banks.get(word % 32).add(word);
    }
  return Math.max(...[...banks.values()].map((words) => words.size));
}

// When each step's copy and multiply run, over a ring of stages: one multiply at a time, a copy takes
// `copy` and starts when its stage is free, the copies beside each other.
function ring(stages, steps, copy, multiply) {
  const copies = [], multiplies = [];
  let end = 0;
  for (let k = 0; k < steps; k++) {
    const free = k < stages ? 0 : multiplies[k - stages].end;
    copies.push({start: free, end: free + copy});
    const start = Math.max(end, free + copy);
    end = start + multiply;
    multiplies.push({start, end});
  }
  return {copies, multiplies, end, busy: (steps * multiply) / end};
}

if (typeof module !== "undefined") module.exports = {visit, traffic, placeOf, passes, ring};
