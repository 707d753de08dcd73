"""The CUDA C++ ladder. All that tcgemm knows of it: KERNELS and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

if __name__ != "tcgemm.cuda_ref":
    raise ImportError("import tcgemm.cuda_ref: cuda_ref is not a package of its own")

from . import tilings
from .fusion import Asked, case, numbers
from .limits import (
    WMMA_SHAPES,
    refuse_gemv,
    refuse_integer_epilogues,
    refuse_skinny,
    refuse_tiled_copies,
    refuse_tma,
    refuse_vector_rows,
    refuse_wgmma_types,
    refuse_wmma_loads,
    refuse_wmma_types,
    wmma_shapes,
)
from .plans import pack, small_plan, yields
from .plans import plan as divided_plan
from .tables import SETTINGS
from .tiles import plan as tile_plan
from .toolchain import CSRC, built_by_case, constants

PAIRS = (
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

WMMA_PAIRS = (
    *PAIRS,
    ("float16", "float16", "float16"),
    ("int8", "int32"),
    ("uint8", "int32"),
    ("float32", "float32", "tf32"),
    ("float32", "float32", "tf32x3"),
    ("float64", "float64"),
)

FP8_PAIRS = tuple(
    (dtype_in, dtype_out, compute)
    for dtype_in in ("float8_e4m3fn", "float8_e5m2")
    for dtype_out in ("float16", "bfloat16", "float32")
    for compute in ("float32", "fast")
)

FUSES = ("alpha", "beta", "bias", "relu", "gelu", "gelu_tanh", "silu", "batch")

ROWS_SHAPES = "A and B 16-byte aligned, one stride 1, rows a multiple of 16 bytes apart; C anywhere"

TMA_SHAPES = (
    "A and B 16-byte aligned, one stride 1, rows a multiple of 8 elements apart; C anywhere"
)


@cache
def _constants(name: str) -> dict[str, int]:
    return constants(name)


def _plan(name: str, problem: Any) -> Mapping[str, int]:
    """The constants of the rung's source, which alone decides them."""
    return _constants(name)


def _typed_plan(problem: Any) -> Mapping[str, int]:
    """As Shape in csrc/wmma_types.cu."""
    itemsize = {"float64": 8, "float32": 4, "int8": 1, "uint8": 1}.get(problem.dtype_in, 2)
    constants = _constants("wmma_types")
    shape = problem.mma_shape or wmma_shapes(problem.dtype_in)[0]
    mma = zip(("MMA_M", "MMA_N", "MMA_K"), map(int, shape.split("x")), strict=True)
    return {
        "BLOCK_M": constants["BLOCK_M"],
        "BLOCK_N": 64 if itemsize == 8 or problem.compute == "tf32x3" else 128,
        "BLOCK_K": constants["BLOCK_K_BYTES"] // itemsize,
        "NUM_STAGES": constants["NUM_STAGES"],
        "GROUP_M": constants["GROUP_M"],
        **dict(mma),
    }


def _row(name: str, adds: str, capability: tuple[int, int], **limits: Any) -> dict[str, Any]:
    return {
        "name": name,
        "adds": adds,
        "pairs": PAIRS,
        "capability": capability,
        "devices": ("cuda", "cpu"),
        "plan": partial(_plan, name),
        **limits,
    }


KERNELS: tuple[dict[str, Any], ...] = (
    _row(
        "naive",
        "one thread per element of C, of any type pair and with all that can be fused",
        (7, 0),
        pairs=(
            *WMMA_PAIRS,
            ("float16", "float32", "float16"),
            ("float32", "float32", "ieee"),
            *FP8_PAIRS,
        ),
        fuses=(*FUSES, "scales"),
        refuse=refuse_integer_epilogues,
    ),
    _row("tiled", "tiles in shared memory, 2 x 2 elements of C per thread", (7, 0)),
    _row(
        "wmma",
        "tensor cores: one warp per 16 x 16 tile, fragments straight from global memory",
        (7, 0),
        shapes="M, N and K multiples of 16; 32-byte aligned A and B, rows 8 elements apart or a "
        "multiple; bfloat16 from compute capability 8.0",
        refuse=refuse_wmma_loads,
    ),
    _row(
        "wmma_double_buffered",
        "cp.async in 16-byte vectors into the other half of shared memory; 32 x 32 per warp",
        (8, 0),
        shapes="M and N multiples of 64, K of 16; 16-byte aligned rows",
        refuse=lambda problem: refuse_tiled_copies(problem, _constants("wmma_double_buffered")),
    ),
    _row(
        "wmma_grouped",
        "grouped ordering of the tiles, padded shared memory, BLOCK_K 32, fragments reused",
        (8, 0),
        shapes="M and N multiples of 64, K of 32; 16-byte aligned rows",
        refuse=lambda problem: refuse_tiled_copies(problem, _constants("wmma_grouped")),
    ),
    _row(
        "wmma_any",
        "checked copies for any size, stride and alignment; 64 x 64 per warp, four stages",
        (8, 0),
        fuses=FUSES,
    ),
    _row(
        "wmma_types",
        "every type that WMMA multiplies, in all of its shapes; float32 as three products of tf32",
        (8, 0),
        pairs=WMMA_PAIRS,
        fuses=FUSES,
        mma_shapes=(*WMMA_SHAPES, "16x16x8", "8x8x4"),
        refuse=refuse_wmma_types,
        # Of the two rungs with one loop, the one before takes these types.
        yields=lambda problem: problem.compute == "float32" and not problem.mma_shape,
        plan=_typed_plan,
    ),
    _row(
        "wmma_multistage",
        "WMMA at its best: 128 x 256 tiles, the next fragments loaded while these are multiplied",
        (8, 0),
        fuses=FUSES,
        shapes=ROWS_SHAPES,
        refuse=lambda problem: refuse_vector_rows(problem, _constants("wmma_multistage")),
    ),
    _row(
        "mma_multistage",
        "ldmatrix and mma.sync from swizzled stages; no address is worked out in the loop",
        (8, 0),
        fuses=FUSES,
        shapes=ROWS_SHAPES,
        refuse=lambda problem: refuse_vector_rows(problem, _constants("mma_multistage")),
    ),
    _row(
        "mma_float64",
        "float64 by mma.sync, 16 x 8 x 16 in one instruction where WMMA has 8 x 8 x 4",
        (8, 0),
        pairs=(("float64", "float64"),),
        fuses=FUSES,
        shapes=ROWS_SHAPES,
        refuse=lambda problem: refuse_vector_rows(problem, _constants("mma_float64")),
    ),
    _row(
        "wgmma_tma",
        "TMA copies whole tiles, an mbarrier counts them in, wgmma reads them from shared memory",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
    ),
    _row(
        "wgmma_specialized",
        "a producer warp fills a ring of stages for two consumer warpgroups; 128 x 256 tiles",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
    ),
    _row(
        "wgmma_persistent",
        "blocks that stay: loads and stores under multiplies, clusters that multicast B",
        (9, 0),
        fuses=FUSES,
        shapes=TMA_SHAPES + "; matrices of a batch a multiple of 8 elements apart",
        refuse=refuse_tma,
        plan=tile_plan,
    ),
    _row(
        "one_wave",
        "one tile to a block and all at once: what is known to the build, the loop need not ask",
        (9, 0),
        fuses=FUSES[:-1],  # no batch
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
        yields=partial(yields, "one_wave"),
        plan=partial(divided_plan, "one_wave"),
    ),
    _row(
        "split_k",
        "blocks divide K; their sums meet in a cluster, or in a workspace, in the order of K",
        (9, 0),
        shapes=TMA_SHAPES,
        refuse=refuse_tma,
        yields=partial(yields, "split_k"),
        plan=partial(divided_plan, "split_k"),
        fuses=FUSES[:-1],  # no batch
    ),
    _row(
        "skinny",
        "few rows as wgmma's narrow side; a cluster divides K, so that memory is never idle",
        (9, 0),
        shapes=f"M or N at most 128; {TMA_SHAPES}",
        refuse=refuse_skinny,
        yields=partial(yields, "skinny"),
        plan=partial(divided_plan, "skinny"),
        fuses=FUSES[:-1],  # no batch
    ),
    _row(
        "stream_k",
        "all steps along K of all tiles in equal ranges, one to an SM; their ends meet in order",
        (9, 0),
        shapes=f"M or N at most 128; {TMA_SHAPES}",
        refuse=refuse_skinny,
        yields=partial(yields, "stream_k"),
        plan=partial(divided_plan, "stream_k"),
        fuses=FUSES[:-1],  # no batch
    ),
    _row(
        "gemv",
        "up to 8 rows: a ring of cp.async for each warp, which streams B and waits for no other",
        (9, 0),
        shapes="B, or A where M > N, 16-byte aligned, one stride 1, rows a multiple of 8 elements "
        "apart",
        refuse=refuse_gemv,
        yields=partial(yields, "gemv"),
        plan=partial(divided_plan, "gemv"),
        fuses=FUSES,
    ),
    _row(
        "small",
        "a small C of any rows: one trip from memory to mma.sync, and one barrier before C",
        (9, 0),
        yields=partial(yields, "small"),
        plan=small_plan,
        fuses=FUSES,
    ),
    _row(
        "wgmma_types",
        "8-bit types, tf32 and float32 as three tf32 products, split between TMA and wgmma",
        (9, 0),
        pairs=(
            ("int8", "int32"),
            ("uint8", "int32"),
            *FP8_PAIRS,
            ("float32", "float32", "tf32"),
            ("float32", "float32", "tf32x3"),
        ),
        fuses=(*FUSES, "scales"),
        shapes="any; an operand that is not K-major in 16-byte aligned rows is copied so first "
        "(counted in its time)",
        refuse=refuse_wgmma_types,
        plan=tilings.plan,
    ),
)


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, fusion=None, **plan)``, compiled on first use.

    ``a``, ``b`` and ``c`` are all 2-D, or all 3-D with the batch first; ``fusion`` says what is
    asked besides the plain product (see fusion.py), None that nothing is. CPU tensors take the
    same source through the simulator, compiled by g++.

    Raises LookupError for an unknown name, RuntimeError without a working compiler, or without a
    GPU where the simulator does not run the rung.
    """
    rows = {row["name"]: row for row in KERNELS}
    if name not in rows:
        raise LookupError(f"unknown CUDA kernel {name!r}: choose from {', '.join(rows)}")

    import torch

    if not torch.cuda.is_available() and "cpu" not in rows[name]["devices"]:
        raise RuntimeError(
            f"the CUDA kernel {name!r} needs an NVIDIA GPU and torch sees none: "
            "check nvidia-smi and that torch was installed with CUDA (torch.version.cuda is "
            f"{torch.version.cuda})"
        )
    from .build import Operators, operators
    from .simulator import run as simulate

    by_case = built_by_case(CSRC / f"{name}.cu")
    prepared: dict[Any, Operators] = {}

    def build(device: int, defines: tuple[str, ...] = ()) -> Operators:
        capability = torch.cuda.get_device_capability(device)
        key = (device, defines) if by_case else device
        prepared[key] = operators(name, capability, defines)
        return prepared[key]

    def run(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        fused = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
        bind(a, b, c, fusion, **plan)(a, b, c, *fused)

    def bind(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> Callable[..., None]:
        """The rung for products like this one: a function of (a, b, c, c_in, bias, scale_a,
        scale_b), the tensors of ``fusion``, none of which is kept."""
        device = a.get_device()
        asked = () if fusion is None else (
            fusion.alpha, fusion.beta, fusion.epilogue, fusion.compute, fusion.mma_shape,
        )  # fmt: skip
        if device < 0:
            return lambda a, b, c, *tensors: simulate(
                name, a, b, c, Asked(*asked, *tensors) if asked else None
            )
        plain, fused = operators_for(device, a, c, fusion, plan)
        config = pack(name, plan, c.shape[-2] > c.shape[-1]) if name in SETTINGS else 0
        if fusion is None:
            return lambda a, b, c, *none: plain(a, b, c, config)
        constants = numbers(fusion)
        return lambda *tensors: fused(*tensors, *constants, config)

    def operators_for(
        device: int, a: torch.Tensor, c: torch.Tensor, fusion: Any, plan: Mapping[str, int]
    ) -> Operators:
        if not by_case:
            return prepared.get(device) or build(device)
        defines = case(a.dtype, fusion, c.dtype, a.dim() == 3, by_case, plan)
        return prepared.get((device, defines)) or build(device, defines)

    run.bind = bind  # type: ignore[attr-defined]
    if torch.cuda.is_available() and not by_case:
        build(torch.cuda.current_device())
    return run


STAGES = ("ptx", "sass")
"""The texts that ``inspect`` can give."""


def inspect(name: str, problem: Any, texts: bool = False) -> dict[str, Any]:
    """What nvcc makes of the rung for the problem's GPU.

    The instance that the problem would launch is picked by its symbol; where several are left,
    "instances" says how many, their counts are summed and the resources are the most of any.
    "shared bytes" leaves out what is asked for at the launch. With ``texts``, stage -> text.

    Compiling takes 2 to 60 s. Raises RuntimeError without nvcc or cuobjdump.
    """
    from collections import Counter

    from .inspection import compile_only, compiler, instances, source_lines
    from .toolchain import sm_of

    defines: tuple[str, ...] = ()
    if macros := built_by_case(CSRC / f"{name}.cu"):
        fusion = None if problem.plain else problem
        row = next(row for row in KERNELS if row["name"] == name)
        batched = problem.batch > 1
        plan = row["plan"](problem)
        defines = case(problem.dtype_in, fusion, problem.dtype_out, batched, macros, plan)
    report = compile_only(name, sm_of(problem.capability or (9, 0)), defines, texts=texts)
    kernels = instances(name, report.kernels, problem)
    counts: Counter[str] = Counter()
    for kernel in kernels:
        counts.update(kernel.sass)
    own, whole = source_lines(name)
    return {
        "compiler": compiler(),
        "target": report.target,
        "instances": len(kernels),
        "instances built": len(report.kernels),
        "registers": max(kernel.registers for kernel in kernels),
        "spilled bytes": max(kernel.spill_bytes for kernel in kernels),
        "static shared bytes": max(kernel.static_shared_bytes for kernel in kernels),
        "serialized": report.serialized,
        "seconds": round(report.seconds, 2),
        "lines": own,
        "lines with what is shared": whole,
        "counts": dict(counts),
        "texts": {
            stage: "\n".join(f"// {k.symbol}\n{k.texts.get(stage, '')}" for k in kernels)
            for stage in (STAGES if texts else ())
        },
    }
