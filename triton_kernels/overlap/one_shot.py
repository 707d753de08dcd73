"""one_shot: collectives of one kernel, beside a product that is anybody's.

    push     this rank's rows of A -> every rank's slot; then the slot holds all of A
    reduce   C[rows of this rank, N] = f(sum over ranks of P_r[M, N] + bias[N]), P_r partial sums

Adds:     to NCCL's collectives, stores straight into the peers' slots and nothing else: no copy
          engine and no step over a rank between. Each block stores its slices at every peer, sets
          its flags there, and only then waits for the same block's flags of the peers. Block b of a
          peer has stored what block b reads here, so no block waits for the whole grid.
Missing:  what is stored is not hidden under the product, which runs before it or behind it.

Memory:   flags are those of signals.py, in the words of tiles: flag b of a peer is its block b's.
          A block looks at the flags of all peers at once, and sets its own at all peers at once, so
          that one fence covers all of them. Stores and loads are of 16 bytes a thread.

Epochs:   the first block tells the peers of the calls that have ended here, as ``signals.enter``
          does. No block counts this call before all have read how many there were: each takes one
          more for this call's number, and the last one to have told its peers writes it.

Early:    on a GPU ``reduce`` is launched while the product ahead runs (programmatic dependent
          launch, PDL). It waits for the end of that kernel before it reads or tells anything.
"""

from __future__ import annotations

from ..device.dot import narrow, widen
from ..device.epilogue import finish
from ..host.runtime import tl, triton
from .signals import (
    await_kernel_before,
    count_call,
    fence_async,
    give_up,
    let_next_start,
    tell_done,
    words_of,
)
from .tile import rows_of

OF_A_CALL = ("units", "chunk", "rank", "most", "flags_at", "done_at", "limit", "reports")
"""Numbers of which no kernel is compiled anew."""


@triton.jit
def missing(flags, others, peers, wanted, WORLD: tl.constexpr):
    """The first peer whose flag is less than ``wanted``; WORLD or more where none is. What the
    others stored before theirs is seen by what follows here."""
    seen = tl.atomic_add(flags, 0, mask=others, sem="acquire", scope="sys")
    return tl.min(tl.where(others & (seen - wanted < 0), peers, WORLD))


@triton.jit
def await_all(flags, others, peers, wanted, limit, reports, trouble, number, WORLD: tl.constexpr):
    """Wait until every flag of ``others`` is at least ``wanted``; see signals.wait. The first peer
    that is late where the wait is given up, else WORLD or more."""
    late = missing(flags, others, peers, wanted, WORLD)
    looks = 0
    while (late < WORLD) & (looks < limit):
        late = missing(flags, others, peers, wanted, WORLD)
        looks += 1
    if late < WORLD:  # noqa: SIM102 (what was missing first is told, and looked for only then)
        if tl.load(trouble) == 0:
            give_up(wanted, reports, trouble, late, number)
    tl.debug_barrier()
    return late


@triton.jit
def set_flags(to, at, which, value):
    """Set word ``at`` of each rank in ``which``, after everything this program stored before.

    ``to``: every rank's words, from ``words_of``.
    """
    tl.debug_barrier()
    tl.atomic_xchg(to + at, value, mask=which, sem="release", scope="sys")


@triton.jit
def slot_of(addresses, peers, peer, dtype: tl.constexpr):
    """A rank's slot, from a block of the addresses of all of them."""
    at = tl.sum(tl.where(peers == peer, addresses, 0))
    return tl.multiple_of(at.to(tl.pointer_type(dtype)), 16)  # bytes; it begins at 1024


@triton.jit(do_not_specialize=["rows", *OF_A_CALL])
def push(
    own,
    scales,
    rows,
    units,
    chunk,
    rank,
    most,
    flags_at,
    done_at,
    data,
    words,
    flags,
    done,
    epoch,
    last,
    count,
    trouble,
    limit,
    reports,
    WORLD: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """This rank's rows, and their scales, into every rank's slot; ends when all peers' are here.

    Args:
        epoch, last, done, done_at: see signals.enter. count: see signals.count_call.
        own: int32, contiguous: ``rows`` rows of ``units`` times 16 bytes.
        scales: float32, one for each row, or None: they lie behind all ranks' rows.
        LANES: a power of two, WORLD or more. BLOCK: words of a slice.
    """
    program, step = tl.program_id(0), tl.num_programs(0)
    peers = tl.arange(0, LANES)
    others = (peers < WORLD) & (peers != rank)
    addresses = tl.load(data + peers, mask=peers < WORLD, other=0)
    flags_to = words_of(words, peers, WORLD)
    calls, before = tl.load(epoch), tl.load(last)
    if program == 0:
        tell_done(flags_to, others, done_at, rank, calls)
    size = rows * units * 4
    mine = rank * chunk * units * 4
    offs = program * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(own + offs, mask=offs < size)  # on its way while peers are waited for
    late = await_all(done + peers, others, peers, before, limit, reports, trouble, -1, WORLD)
    if late < WORLD:  # that peer still reads its slot: store nothing, set no flag, wait no more
        size, rows, limit, others = 0 * size, 0 * rows, 0 * limit, others & (late >= WORLD)
    for at in range(program * BLOCK, size, step * BLOCK):
        offs = at + tl.arange(0, BLOCK)
        after = offs + step * BLOCK
        next_x = tl.load(own + after, mask=after < size)
        for turn in tl.static_range(1, WORLD + 1):  # own slot last
            to = slot_of(addresses, peers, (rank + turn) % WORLD, tl.int32)
            tl.store(to + mine + offs, x, mask=offs < size)
        x = next_x
    if scales is not None:
        behind = WORLD * chunk * units * 4 + rank * chunk
        for at in range(program * BLOCK, rows, step * BLOCK):
            offs = at + tl.arange(0, BLOCK)
            scale = tl.load(scales + offs, mask=offs < rows)
            for turn in tl.static_range(1, WORLD + 1):
                to = slot_of(addresses, peers, (rank + turn) % WORLD, tl.float32)
                tl.store(to + behind + offs, scale, mask=offs < rows)
    set_flags(flags_to, flags_at + rank * most + program, others, calls + 1)
    count_call(count, step, epoch, last, calls + 1)
    await_all(
        flags + peers * most + program, others, peers, calls + 1, limit, reports, trouble,
        program, WORLD,
    )  # fmt: skip
    if not INTERPRETED:
        fence_async()  # the product reads the slot by TMA


@triton.jit(do_not_specialize=["M", *OF_A_CALL])
def reduce(
    partial,
    c,
    bias,
    M,
    units,
    chunk,
    rank,
    most,
    flags_at,
    done_at,
    data,
    words,
    flags,
    done,
    epoch,
    last,
    count,
    trouble,
    limit,
    reports,
    WORLD: tl.constexpr,
    LANES: tl.constexpr,
    EACH: tl.constexpr,
    BLOCK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    PDL: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Each owner's rows of the partial sums into its slot, and the sum of all ranks' own rows.

    Args:
        epoch, last, done, done_at: see signals.enter. count: see signals.count_call.
        partial: [M, N] of C's dtype, contiguous, N being ``units`` times EACH, which are 16 bytes.
        c: [rows of this rank, N], contiguous; bias: [N] or None.
        BLOCK: elements of a slice.
    """
    program, step = tl.program_id(0), tl.num_programs(0)
    peers = tl.arange(0, LANES)
    others = (peers < WORLD) & (peers != rank)
    flags_to = words_of(words, peers, WORLD)
    await_kernel_before(PDL)
    let_next_start(PDL)
    calls, before = tl.load(epoch), tl.load(last)
    if program == 0:
        tell_done(flags_to, others, done_at, rank, calls)
    N = units * EACH
    part = chunk.to(tl.int64) * units * EACH  # elements of a rank's part of a slot
    owners = (rank + 1 + peers) % WORLD
    slots = tl.load(data + owners)
    to = tl.multiple_of(slots.to(tl.pointer_type(partial.dtype.element_ty)), 16) + rank * part
    theirs = partial + owners * part
    # Of the lanes behind the last peer, of which one is this rank's own, nothing is stored.
    sizes = tl.where(peers < WORLD - 1, rows_of(M, chunk, owners), 0) * units * EACH
    offs = program * BLOCK + tl.arange(0, BLOCK)
    inside = offs[None, :] < sizes[:, None]
    x = tl.load(theirs[:, None] + offs[None, :], mask=inside)
    late = await_all(done + peers, others, peers, before, limit, reports, trouble, -1, WORLD)
    if late < WORLD:  # as in ``push``
        sizes, limit, others = 0 * sizes, 0 * limit, others & (late >= WORLD)
    for at in range(program * BLOCK, chunk * units * EACH, step * BLOCK):
        offs = at + tl.arange(0, BLOCK)
        inside = offs[None, :] < sizes[:, None]
        after = offs + step * BLOCK
        next_x = tl.load(theirs[:, None] + after[None, :], mask=after[None, :] < sizes[:, None])
        tl.store(to[:, None] + offs[None, :], x, mask=inside)
        x = next_x
    set_flags(flags_to, flags_at + rank * most + program, others, calls + 1)
    count_call(count, step, epoch, last, calls + 1)
    await_all(
        flags + peers * most + program, others, peers, calls + 1, limit, reports, trouble,
        program, WORLD,
    )  # fmt: skip
    here = tl.load(data + rank)
    own = partial.to(tl.int64) + rank * part * (16 // EACH)
    size = rows_of(M, chunk, rank) * units * EACH
    for at in range(program * BLOCK, size, step * BLOCK):
        offs = at + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for source in tl.static_range(WORLD):
            arrived = here + source * part * (16 // EACH)
            lies = tl.where(rank == source, own, arrived).to(tl.pointer_type(c.dtype.element_ty))
            lies = tl.multiple_of(lies, 16)
            one = tl.load(lies + offs, mask=offs < size, other=0.0)
            one = widen(one, EMULATED).to(tl.float32)
            total = one if source == 0 else total + one
        row, col = tl.zeros((1,), tl.int64), (offs % N).to(tl.int64)
        total = finish(
            total[None, :], row, col, 1, N, None, bias, None, None, 1.0, 0.0, 1,
            False, False, False, ACTIVATION, EMULATED, INTERPRETED,
        )  # fmt: skip
        total = tl.reshape(narrow(total, c.dtype.element_ty, EMULATED), (BLOCK,))
        tl.store(c + offs, total, mask=offs < size)
