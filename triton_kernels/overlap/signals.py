"""Flags between GPUs, and how a call begins: by a small kernel, or within its product.

A flag is an int32 in memory that a peer writes. It holds the epoch of the call that it was written
for, which is the call's number, so a flag of an earlier call is never taken for one of this call
and no flag is ever put back.

Order of memory: who sets a flag has a barrier of its block after the stores, then releases at
system scope by one thread. Who waits acquires at system scope by one thread, and a barrier of its
block follows (Triton's own, by which it shares the value). What is then read by TMA needs a proxy
fence besides: ``fence_async``.
"""

from __future__ import annotations

from ..host.runtime import tl, triton


@triton.jit
def stop():
    """End the launch with an error, which every later call of the process reports."""
    tl.inline_asm_elementwise(
        "trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def fence_async():
    """What was acquired before is seen by TMA loads after: they pass by another proxy."""
    tl.inline_asm_elementwise(
        "fence.proxy.async; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def wait(flag, epoch, limit, reports, trouble, source, part):
    """Wait until the flag holds the epoch, for at most ``limit`` looks; see ``give_up``."""
    seen = look(flag)
    looks = 0
    while (seen != epoch) & (looks < limit):
        seen = look(flag)
        looks += 1
    if seen != epoch:
        give_up(epoch, reports, trouble, source, part)


@triton.jit
def look(flag):
    """The flag's value; what its setter stored before is seen by what follows here."""
    return tl.atomic_add(flag, 0, sem="acquire", scope="sys")


@triton.jit
def give_up(epoch, reports, trouble, source, part):
    """End the launch with an error or, with ``reports`` 1, go on and say in ``trouble``, int32[4],
    what is missing: 1, the rank, the part (a part or a tile; -1: the end of a call), the epoch."""
    if reports != 0:
        tl.store(trouble + 1, source)
        tl.store(trouble + 2, part)
        tl.store(trouble + 3, epoch)
        tl.store(trouble, 1)
    else:
        stop()


@triton.jit
def set_flag(flag, epoch):
    """Set a flag, here or at a peer, after everything that this program has stored before."""
    tl.debug_barrier()
    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit(do_not_specialize=["at", "count", "limit", "reports", "owner", "part"])
def await_stored(stored, at, count, trouble, limit, reports, owner, part):
    """Wait until ``count`` tiles of an owner's part are stored here, and set stored[at] back to 0.

    What follows in the stream, the copy of the part, sees them.
    """
    seen = count_of(stored + at)
    looks = 0
    while (seen < count) & (looks < limit):
        seen = count_of(stored + at)
        looks += 1
    if seen < count:
        give_up(count, reports, trouble, owner, part)
    tl.store(stored + at, 0)


@triton.jit
def count_of(stored):
    """How many tiles are stored; what was stored before each was counted is seen after."""
    return tl.atomic_add(stored, 0, sem="acquire", scope="gpu")


@triton.jit
def stamp(stamps, at, INTERPRETED: tl.constexpr):
    """stamps[at] = the GPU's clock in ns, where the launch has int64 ``stamps``; else nothing.

    The interpreter, which has no clock, counts how often it comes by.
    """
    if stamps is not None:
        if INTERPRETED:
            now = tl.load(stamps + at) + 1
        else:
            now = tl.inline_asm_elementwise(
                "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
            )
        tl.store(stamps + at, now)


@triton.jit
def words_at(addresses, rank):
    """The int32 words at a rank, from the table of their addresses."""
    return tl.load(addresses + rank).to(tl.pointer_type(tl.int32))


@triton.jit
def words_of(words, peers, WORLD: tl.constexpr):
    """Every rank's words, of a block of ``peers``. They are read early, since behind stores that
    would take its time.

    Args:
        words: int64[WORLD], the addresses of every rank's words.
    """
    return tl.load(words + peers, mask=peers < WORLD, other=0).to(tl.pointer_type(tl.int32))


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """With PDL, the next kernel may be launched when all blocks of this one came here."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def await_kernel_before(PDL: tl.constexpr):
    """With PDL, wait for the end of the kernel before and for what it wrote."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def tell_done(to, others, done_at, rank, calls):
    """Tell every peer that this rank has ended so many calls: it reads nothing of any slot more.

    Kernels of a stream run one after another, and a call on another stream follows the one before,
    so whoever begins a call knows that those before have ended.

    Args:
        to: every rank's words, from ``words_of``; others: which are peers'.
        done_at: where ``done`` is in them.
    """
    tl.atomic_xchg(to + done_at + rank, calls, mask=others, sem="release", scope="sys")


@triton.jit
def count_call(count, blocks, epoch, last, now):
    """By every block when it has read how many calls there were: the last one counts this call, and
    that it used the slot. It orders nothing else.

    Args:
        count: int32, of this rank alone, 0 between calls: blocks that were here.
        now: the call's number.
    """
    if tl.atomic_add(count, 1, sem="relaxed", scope="gpu") == blocks - 1:
        tl.store(count, 0)
        tl.store(last, now)
        tl.store(epoch, now)


@triton.jit
def begin(
    begins, words, done_at, epoch, rank, stamps, WORLD: tl.constexpr, LANES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """The number of the call that this program's kernel belongs to. With ``begins`` 1 the kernel
    begins it, of which the slot is free for certain, and ends with ``count_call``; else ``enter``
    did."""
    if (begins != 0) & (tl.program_id(0) == 0):
        stamp(stamps, 0, INTERPRETED)
        peers = tl.arange(0, LANES)
        others = (peers < WORLD) & (peers != rank)
        tell_done(words_of(words, peers, WORLD), others, done_at, rank, tl.load(epoch))
        stamp(stamps, 1, INTERPRETED)
    return tl.load(epoch) + begins


@triton.jit(do_not_specialize=["done_at", "rank", "limit", "reports"])
def enter(
    epoch, last, done, words, done_at, trouble, rank, limit, reports, WORLD: tl.constexpr,
    LANES: tl.constexpr, INTERPRETED: tl.constexpr, stamps=None, PDL: tl.constexpr = False,
):  # fmt: skip
    """Begin a call: tell the peers that those before have ended here, wait until every peer has
    ended the call that used the slot last, and count this one.

    Args:
        epoch, last: int32[1] of this rank alone: its calls so far, and which used the slot last.
        done: int32[WORLD], written by the peers: the last call that each has ended.
        words: see ``words_of``; done_at: see ``tell_done``.
        LANES: a power of two, WORLD or more.
        stamps: int64 or None: the begin and the end of this kernel are its first two.
    """
    let_next_start(PDL)
    stamp(stamps, 0, INTERPRETED)
    calls, before = tl.load(epoch), tl.load(last)
    peers = tl.arange(0, LANES)
    others = (peers < WORLD) & (peers != rank)
    tell_done(words_of(words, peers, WORLD), others, done_at, rank, calls)
    for peer in range(WORLD):
        if peer != rank:
            # A peer that has no rows may have ended this call as well by now.
            looks = 0
            while (look(done + peer) - before < 0) & (looks < limit):
                looks += 1
            if look(done + peer) - before < 0:
                give_up(before, reports, trouble, peer, -1)
    tl.debug_barrier()
    tl.store(last, calls + 1)
    tl.store(epoch, calls + 1)
    stamp(stamps, 1, INTERPRETED)
