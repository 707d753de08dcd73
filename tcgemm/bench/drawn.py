"""The suite ``drawn``: shapes that nobody tuned for, drawn at random and the same for a seed.

Every other suite has sizes that are multiples of 64 or nearly so. What users bring is not: how the
rows of the operands are aligned decides whether 16-byte copies and TMA can read them at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from ..choosing import model_files
from ..errors import OperandError
from ..problem import COMPUTES, ITEMSIZE, LAYOUTS, OUTPUTS
from .case import Case

ALIGNMENTS = (2, 16, 32, 64, 128)
"""Bytes that rows of A, B and C are a multiple of; of no larger power of two, but for the last. The
first is an element where that has more or less than 2."""

FITTED: dict[int, str] = {
    7: "kernels per drawn shape are counted on it (tests/test_specialisations.py)",
    101: "Triton's choice for unaligned rows, and what copies cost (docs/lab/drawn_shapes.md)",
    102: "the same",
    201: "the model that chooses (scripts/fit_model.py)",
    202: "the same",
    203: "the same",
    301: "where Triton divides K, and what CUDA's small costs",
    302: "the same",
    303: "the same",
    401: "where CUDA starts a short product too slowly, and with it small's ring",
    402: "the same",
    403: "the same",
    404: "the model that chooses, of CUDA: what of a tile lies outside of C",
    405: "the same",
    501: "what a short K, split sectors and odd rows of C cost, in the model that chooses",
    502: "the same",
    505: "CUDA's tile of 192 x 192, and which kernels were raced where it lost",
    506: "the same",
    **dict.fromkeys(range(507, 513), "the model that chooses, and where skinny's plans were raced"),
    **dict.fromkeys(
        (513, 514, 515, 611, 612, 613), "one_wave's clusters, and the model that chooses"
    ),
    **dict.fromkeys((516, 517, 518), "the order of tiles, and when wgmma_persistent pairs blocks"),
    **dict.fromkeys(
        (519, 520), "the model of Triton's plans, and plans of CUDA's small and one_wave"
    ),
    **dict.fromkeys(range(521, 526), "which plans Triton's module offers"),
    **dict.fromkeys(
        (526, 527, 528),
        "where CUDA's gemv is taken only by name, and a divided K of Triton's plans",
    ),
    **dict.fromkeys((531, 532, 533), "which plans were raced where they lost"),
    **dict.fromkeys((538, 539, 540), "the trees of the model of Triton's plans, and CUDA's pairs"),
    **dict.fromkeys(
        (546, 547, 548), "the trees of the model of Triton's plans, and when CUDA takes one_wave"
    ),
    **dict.fromkeys(range(549, 555), "the trees of the models of Triton's plans and of one_wave's"),
    555: "how long K is where CUDA's skinny is taken",
    **dict.fromkeys(
        range(558, 564),
        "the trees of both models, and when CUDA takes skinny, thin and pairs",
    ),
    **dict.fromkeys(range(567, 570), "where Triton takes tiles of 256 x 192"),
    **dict.fromkeys(range(570, 582), "the trees of both models, and what a C in odd rows costs"),
    **dict.fromkeys(
        (*range(585, 591), *range(870, 875)), "the models of plans of both languages, by races"
    ),
    **dict.fromkeys(range(876, 880), "the model of Triton's plans, by races on Triton 3.7.1"),
    610: "the same as of 507",
    614: "the trees of the model of Triton's plans",
    615: "the same",
    **dict.fromkeys(range(600, 608), "what split lines of the L2 cost Triton's tiles"),
    **dict.fromkeys(
        (*range(620, 660), *range(661, 700), *range(701, 760), *range(761, 765)),
        "some of their shapes: as of 558",
    ),
    860: "the model that chooses: what a C in odd rows costs (its shapes are drawn otherwise)",
    1001: "of types other than 16-bit floats: how skinny loads rows of 16 bytes",
    1002: "the same: how launches by pointers behind copies are recorded",
    1_000_003: "tcgemm warm compiles what it needs (tools/warm/covering.py)",
}
"""Seed -> what was fitted to its shapes. No figure of a report comes from such a seed; figures on
pages of docs/lab were timed before the fit. Whoever fits a table or a model to drawn shapes adds
theirs. Seeds that a user's own model was fitted to stand in its file."""

LARGEST = 16384
MOST_FLOP = 4 * 10**12
MOST_BYTES = 6 * LARGEST**2
"""Of A, B and C: no product of 16 bits alone has more."""

MOST_BATCH = 64
BATCHED = 0.1
"""Share of batches, of what is drawn with some."""

BATCHED_SEED = 2**62 + 1
"""From a seed to that of its batches: no seed can be given that is so large."""


def flatters(seed: int, slug: str) -> str:
    """A sentence where something was fitted to the shapes of a seed, by the project or by ``tcgemm
    tune --model`` on the GPU of that slug; else an empty one."""
    yours = model_files.of(slug)
    if seed in FITTED:
        by = "bench/drawn.py"
    elif yours.yours and seed in yours.seeds:
        by = f"your model {yours.path}"
    else:
        return ""
    return (
        f"Something was fitted to the shapes of seed {seed} ({by}), so its ratios flatter: take "
        "another --seed for a figure that is shown"
    )


def drawn_cases(
    seed: int,
    count: int,
    dtypes: Sequence[str] = (),
    layouts: Sequence[str] = (),
    batches: bool = False,
    computes: Sequence[str] = (),
) -> list[Case]:
    """``count`` different cases, the same for the same arguments on every machine.

    M, N and K are log-uniform from 1 to LARGEST, 2 M N K at most MOST_FLOP; alignment, layout and
    dtype are uniform. Sizes along which an operand is contiguous are rounded so that its rows have
    the alignment; those of a C of another dtype than A and B have as many elements. The suite's
    name carries the seed, and the alignment in bytes: ``drawn-s7-a16``.

    Args:
        seed: another seed gives other cases.
        count: at least 1.
        dtypes: of A and B, C has the first that goes with it; by default float16 and bfloat16.
        layouts: by default all four.
        batches: let about one case in ten be a batch, of MOST_BATCH products at most (log-uniform
            from 2 on), which take MOST_FLOP and MOST_BYTES in all. They are drawn by a generator of
            their own, and their suite is ``drawn-batched-s7-a16``; the other cases are the first
            that the seed gives without them.
        computes: how products are summed, of those that the dtype has; by default its first.

    Raises OperandError where a dtype has none of ``computes``.
    """
    if not batches:
        return list(islice(_drawn(seed, dtypes, layouts, None, computes), count))
    which = random.Random(seed + BATCHED_SEED).random
    one = _drawn(seed, dtypes, layouts, None, computes)
    many = _drawn(seed, dtypes, layouts, which, computes)
    return [next(many if which() < BATCHED else one) for _ in range(count)]


def _drawn(
    seed: int,
    dtypes: Sequence[str],
    layouts: Sequence[str],
    of_batches: Callable[[], float] | None = None,
    computes: Sequence[str] = (),
) -> Iterator[Case]:
    """Different cases without end; batches, by the generator ``of_batches``, where there is one."""
    draw = of_batches or random.Random(seed).random  # of its methods the one that never changes
    named = f"drawn-batched-s{seed}" if of_batches else f"drawn-s{seed}"

    def one_of(values: Sequence[Any]) -> Any:
        return values[int(draw() * len(values))]

    kinds = [
        (dtype, OUTPUTS[dtype][0], compute)
        for dtype in dtypes or ("float16", "bfloat16")
        for compute in _computes(dtype, computes)
    ]
    cases: dict[tuple[object, ...], Case] = {}
    while True:
        alignment = ALIGNMENTS[len(cases) % len(ALIGNMENTS)]
        dtype, dtype_out, compute = one_of(kinds)
        if alignment == ALIGNMENTS[0]:
            alignment = ITEMSIZE[dtype]
        layout = one_of(layouts or LAYOUTS)
        sizes = {name: max(1, round(LARGEST ** draw())) for name in "MNK"}
        rows = {"K" if layout[0] == "n" else "M", "N" if layout[1] == "n" else "K", "N"}
        for name in rows:
            elements = alignment // ITEMSIZE[dtype]
            sizes[name] = _aligned(sizes[name], elements, alignment == ALIGNMENTS[-1])
        M, N, K = (sizes[name] for name in "MNK")
        batch = round(2 * (MOST_BATCH / 2) ** draw()) if of_batches else 1
        key = (M, N, K, dtype, compute, layout, batch)
        origin = f"drawn with seed {seed}; rows are aligned to {alignment} bytes"
        suite = f"{named}-a{alignment}"
        case = Case(suite, M, N, K, dtype, dtype_out, layout, origin, compute, batch=batch)
        if case.flop > MOST_FLOP or case.product().bytes > MOST_BYTES or key in cases:
            continue
        cases[key] = case
        yield case


def _computes(dtype: str, asked: Sequence[str]) -> Sequence[str]:
    """How products of the dtype are summed, of what is asked for."""
    found = [compute for compute in COMPUTES[dtype] if compute in asked]
    if asked and not found:
        raise OperandError(
            f"products of {dtype} are summed as {' or '.join(COMPUTES[dtype])}, and "
            f"{' or '.join(asked)} was asked for: leave out --compute or --dtype {dtype}"
        )
    return found or COMPUTES[dtype][:1]


def _aligned(size: int, elements: int, lines: bool) -> int:
    """The size as a multiple of so many elements, an odd one below whole lines of 128 bytes."""
    multiple = max(1, round(size / elements))
    if not lines and multiple % 2 == 0:
        multiple -= 1
    return multiple * elements
