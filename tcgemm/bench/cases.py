"""What is measured: shapes in suites, as plain data, each with its origin. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import OperandError, UnknownNameError, UnsupportedError
from ..problem import COMPUTES, EPILOGUES, LAYOUTS, OUTPUTS
from ..vocabulary import sizes_of
from .case import CASE_COLUMNS, DATA, FUSIONS, NORMAL, Case
from .drawn import drawn_cases

DTYPES_IN = tuple(OUTPUTS)
DTYPES_OUT = tuple(dict.fromkeys(out for outs in OUTPUTS.values() for out in outs))
MODES = tuple(dict.fromkeys(mode for modes in COMPUTES.values() for mode in modes))


@dataclass(frozen=True, slots=True)
class Shape:
    M: int
    N: int
    K: int
    origin: str


@dataclass(frozen=True, slots=True)
class Suite:
    """Shapes, and the dtypes and layouts they are measured in unless others are asked for."""

    about: str
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ("float16", "bfloat16")
    layouts: tuple[str, ...] = ("nn", "nt")
    pairs: tuple[tuple[str, str, str], ...] = ()
    """(dtype of A and B, of C, compute) instead of ``dtypes``, each with C of its own dtype."""
    fused: tuple[str, ...] = ("",)
    mma_shapes: tuple[tuple[str, str], ...] = ()
    """(dtype of A and B, WMMA shape): each shape measured where A and B are of that dtype."""


def _cubes(sizes: Iterable[int], origin: str) -> tuple[Shape, ...]:
    return tuple(Shape(n, n, n, origin) for n in sizes)


NOTE = "Reddy, Note 001: GEMM Optimization (2026)"
JETSON = "Gannon, GEMM on Jetson (2024)"
EXERCISE = "Exercise 02: FP16 GEMM with Tensor Cores"

_NOTE_BROKEN = (
    Shape(128, 320, 64, f"{NOTE}: its grouped order leaves tiles uncomputed here"),
    Shape(100, 100, 100, f"{NOTE}: rows that are not 16-byte aligned, where it crashes"),
    Shape(4096, 128, 4096, f"{NOTE}: its grouped order leaves most tiles uncomputed here"),
    Shape(127, 129, 65, f"{NOTE}: no dimension is a multiple of anything"),
)

LLM_WEIGHTS: tuple[tuple[int, int, str], ...] = (
    (6144, 4096, "Llama 3 8B, Mistral 7B and Mixtral 8x7B: query, key and value projection"),
    (4096, 4096, "Llama 3 8B, Mistral 7B and Mixtral 8x7B: attention output projection"),
    (28672, 4096, "Llama 3 8B, Mistral 7B and one Mixtral 8x7B expert: gate and up projection"),
    (4096, 14336, "Llama 3 8B, Mistral 7B and one Mixtral 8x7B expert: down projection"),
    (8192, 8192, "Llama 3 70B: attention output projection"),
    (8192, 28672, "Llama 3 70B: down projection"),
    (3584, 18944, "Qwen2.5 7B: down projection"),
    (2112, 7168, "DeepSeek-V3: joint query and key-value down projection (1536 + 576)"),
    (7168, 2048, "DeepSeek-V3: one expert's down projection"),
)
"""(N, K, origin) of weights in well-known models; the layout nt is how torch stores a Linear."""

LLM_TOKENS = (
    (1, "decode, one sequence"),
    (16, "decode, batch 16"),
    (64, "decode, batch 64"),
    (128, "decode, batch 128"),
    (4096, "prefill of 4096 tokens"),
)

SUITES: dict[str, Suite] = {
    "quick": Suite(
        "a few shapes of each kind, in about two minutes",
        (
            Shape(127, 129, 65, "no dimension is a multiple of anything"),
            *_cubes((512, 1024, 4096), "squares: launch-bound, small, large"),
            Shape(16, 4096, 4096, "decode, batch 16: Llama 3 8B attention output projection"),
            Shape(4096, 4096, 14336, "prefill of 4096 tokens: Llama 3 8B down projection"),
        ),
        dtypes=("bfloat16",),
        layouts=("nn",),
    ),
    "squares": Suite(
        "cubes from 512 to 16384",
        _cubes((512, 1024, 2048, 3072, 4096, 6144, 8192, 16384), "a cube, to see rate over size"),
    ),
    "seeds": Suite(
        "the sizes of the three documents that the project grew from",
        (
            *_cubes((16, 32, 64), NOTE),
            *_NOTE_BROKEN,
            *_cubes((128, 256, 512), NOTE),
            *_cubes((1024, 2048, 4096), f"{EXERCISE}; {NOTE}"),
            Shape(1024, 2048, 512, EXERCISE),
            *_cubes((10000,), JETSON),
        ),
    ),
    "jetson": Suite(
        "the first document's own case, 10000 cubed, in each of its seven type pairs",
        _cubes((10000,), JETSON),
        pairs=(
            ("float16", "float32", "float32"),
            ("float16", "float16", "float16"),
            ("uint8", "int32", "int32"),
            ("int8", "int32", "int32"),
            ("bfloat16", "float32", "float32"),
            ("float32", "float32", "tf32"),
            ("float64", "float64", "float64"),
        ),
    ),
    "llm": Suite(
        "decode and prefill of well-known models",
        tuple(
            Shape(M, N, K, f"{weight}; {tokens}")
            for M, tokens in LLM_TOKENS
            for N, K, weight in LLM_WEIGHTS
        ),
    ),
    "types": Suite(
        "every type pair, and every way to sum",
        _cubes((1024, 4096, 8192), "a cube, to compare type pairs"),
        pairs=tuple(
            (dtype, out, compute)
            for dtype, outs in OUTPUTS.items()
            for out in outs
            for compute in COMPUTES[dtype]
            if (compute == COMPUTES[dtype][0] or out == outs[0])
            and (out == outs[0] or not dtype.startswith("float8"))
        ),
    ),
    "fused": Suite(
        "what an epilogue costs, beside the same in torch's calls",
        (
            *_cubes((1024, 4096), "a cube, to see what the epilogue costs"),
            Shape(4096, 14336, 4096, "prefill of 4096 tokens: Llama 3 8B up projection"),
        ),
        dtypes=("bfloat16",),
        layouts=("nt",),
        fused=("", "residual", "bias", *(f"bias {name}" for name in EPILOGUES)),
    ),
    "wmma": Suite(
        "the five WMMA shapes, by type",
        _cubes((4096,), "a cube, to compare instruction shapes"),
        mma_shapes=(
            *(
                (dtype, shape)
                for dtype in ("float16", "bfloat16", "int8", "uint8")
                for shape in ("16x16x16", "32x8x16", "8x32x16")
            ),
            ("float32", "16x16x8"),
            ("float64", "8x8x4"),
        ),
    ),
}
"""Suite name -> shapes. ``full`` is all of them."""

CHECKED = Suite(
    "small and odd shapes that run on a CPU within a minute",
    (
        *_cubes((64,), "four 32-wide tiles"),
        *_NOTE_BROKEN[:2],
        _NOTE_BROKEN[3],
        Shape(1, 256, 128, "decode, one sequence, made small"),
    ),
    layouts=("nn",),
)
"""What ``quick`` means where there is no GPU: nothing is timed, so small shapes say as much."""

DRAWN = "drawn"
"""The suite whose cases are drawn at random: see ``drawn``."""

DRAWN_BATCHED = "drawn-batched"
"""The same, in which about one case in ten is a batch."""

OF_DRAWN = (DRAWN, DRAWN_BATCHED)

NAMES = (*SUITES, "full", *OF_DRAWN)


def build(
    suite: str | None = "quick",
    *,
    shapes: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    dtypes_out: Sequence[str] = (),
    layouts: Sequence[str] = (),
    computes: Sequence[str] = (),
    fused: Sequence[str] = (),
    device: str = "cuda",
    seed: int = 0,
    count: int = 100,
    data: Sequence[str] = (),
) -> list[Case]:
    """The cases of a suite, or of shapes given by hand, without repeats.

    Args:
        suite: a name of NAMES; ignored where shapes are given.
        shapes: each as "MxNxK".
        dtypes: of A and B; by default the suite's, or bfloat16 for shapes given by hand.
        dtypes_out: of C, each paired with every dtype of A and B that it fits; by default the
            suite's, or the first of problem.OUTPUTS.
        layouts: of nn, nt, tn, tt; by default the suite's, or nn.
        computes: how the products are summed, each with every dtype that it fits; by default the
            suite's, or the first of problem.COMPUTES.
        fused: what is fused, each some of FUSIONS joined by spaces; by default the suite's.
        device: "cuda" or "cpu". On the CPU only quick (then CHECKED) and shapes given by hand are
            possible.
        seed, count: of the suites drawn and drawn-batched: their seed, and how many cases. They
            are of float16 and bfloat16 unless dtypes are given, and fuse nothing.
        data: what A and B hold, of case.DATA; by default normal.

    Raises:
        UnknownNameError: no suite, dtype or layout of that name.
        OperandError: a shape that is malformed, or a pair of dtypes that no kernel could take.
        UnsupportedError: a suite that needs a GPU.
    """
    _known("dtype", dtypes, DTYPES_IN)
    _known("output dtype", dtypes_out, DTYPES_OUT)
    _known("layout", layouts, LAYOUTS)
    _known("compute", computes, MODES)
    _known("data", data, DATA)
    _known("fusion", [word for words in fused for word in words.split()], FUSIONS)
    _known("suite", [suite] if suite else [], NAMES)
    chosen: list[tuple[str, Suite]]
    if shapes:
        given = tuple(Shape(*sizes_of(text), "given by hand") for text in shapes)
        by_hand = Suite("shapes given by hand", given, ("bfloat16",), ("nn",))
        chosen = [("shape", by_hand)]
    else:
        suite = suite or "quick"
        if device == "cpu":
            if suite != "quick":
                raise UnsupportedError(
                    f"suite {suite} is measured on a GPU and there is none here: use --suite quick "
                    "or --shape MxNxK, which are checked and not timed"
                )
            chosen = [("quick", CHECKED)]
        elif suite in OF_DRAWN:
            if beyond := [*dtypes_out, *fused]:
                raise OperandError(
                    f"suite {suite} is of products with nothing fused and the default dtype of C, "
                    f"and {', '.join(beyond)} was asked for: leave that out, or name a --shape"
                )
            batches = suite == DRAWN_BATCHED
            drawn = drawn_cases(seed, count, dtypes, layouts, batches, computes)
            return [replace(case, data=of) for case in drawn for of in data or (NORMAL,)]
        else:
            chosen = [(name, SUITES[name]) for name in (SUITES if suite == "full" else [suite])]
    cases: dict[tuple[object, ...], Case] = {}
    for name, s in chosen:
        pairs = _pairs_of(s, dtypes, dtypes_out, computes)
        for (*pair, mma_shape), layout in itertools.product(pairs, layouts or s.layouts):
            asked = itertools.product(fused or s.fused, s.shapes, data or (NORMAL,))
            for words, x, of in asked:
                dtype_in, dtype_out, compute = pair
                case = Case(
                    name, x.M, x.N, x.K, dtype_in, dtype_out, layout, x.origin, compute,
                    " ".join(word for word in FUSIONS if word in words.split()), mma_shape, of,
                )  # fmt: skip
                cases.setdefault(tuple(getattr(case, name) for name in CASE_COLUMNS), case)
    if not cases:
        pairs_asked = [", ".join(names) for names in (dtypes, dtypes_out, computes) if names]
        raise OperandError(
            f"no type pair of {' with '.join(pairs_asked)}: "
            + "; ".join(f"C of {dtype} is {' or '.join(outs)}" for dtype, outs in OUTPUTS.items())
        )
    return list(cases.values())


def _pairs_of(
    s: Suite, dtypes: Sequence[str], dtypes_out: Sequence[str], computes: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    """(dtype of A and B, of C, compute, WMMA shape): the suite's, or those that were asked for."""
    if s.mma_shapes:
        return [
            (dtype, OUTPUTS[dtype][0], "tf32" if dtype == "float32" else COMPUTES[dtype][0], shape)
            for dtype, shape in s.mma_shapes
            if dtype in (dtypes or DTYPES_IN)
        ]
    if s.pairs and not (dtypes_out or computes):
        return [(*pair, "") for pair in s.pairs if pair[0] in (dtypes or DTYPES_IN)]
    return [
        (dtype, out, compute, "")
        for dtype in dtypes or (dict.fromkeys(p[0] for p in s.pairs) if s.pairs else s.dtypes)
        for out in dtypes_out or OUTPUTS[dtype][:1]
        for compute in computes or COMPUTES[dtype][:1]
        if out in OUTPUTS[dtype] and compute in COMPUTES[dtype]
    ]


def _known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UnknownNameError(f"unknown {what} {name!r}: choose from {', '.join(known)}")
