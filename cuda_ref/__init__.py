"""The CUDA C++ ladder. All that tcgemm knows of it: KERNELS, buildable, choosable, choose, sure,
plans, by_rows, named, second_launch_us, planned_by_user, tuned_by_user, load, inspect,
derivative_kernel, copier, COPIES, COPIED_US and ODD_C."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

if __name__ != "tcgemm.cuda_ref":
    raise ImportError("import tcgemm.cuda_ref: cuda_ref is not a package of its own")

from .build.toolchain import OWN, built_by_case, source
from .fusion import Asked, case
from .planning.choose import choosable as choosable
from .planning.choose import choose as choose
from .planning.choose import sure as sure
from .planning.choose import tuned_by_user as tuned_by_user
from .planning.ladder import rows
from .planning.ladder import tunings as tunings
from .planning.offered import by_rows as by_rows
from .planning.offered import named as named
from .planning.offered import planned_by_user as planned_by_user
from .planning.offered import plans as plans
from .planning.rows import PAIRS

__all__ = [
    "KERNELS",
    "PAIRS",
    "buildable",
    "by_rows",
    "choosable",
    "choose",
    "inspect",
    "load",
    "named",
    "planned_by_user",
    "plans",
    "second_launch_us",
    "sure",
    "tuned_by_user",
]

KERNELS: tuple[dict[str, Any], ...] = tuple(rows())
"""The ladder's rows, each from the Python file beside the rung's source: see planning/ladder.py."""


def buildable(problem: Any, able: Sequence[str]) -> list[str]:
    """Of the rungs that accept the problem those that can be built here, where there is one; else
    all of them: see nvrtc/."""
    if problem.device != "cuda":
        return list(able)
    from .nvrtc import preferred

    return list(preferred(problem, able))


def second_launch_us(problem: Any, kernel: str, plan: Mapping[str, int]) -> float:
    """Microseconds of a plan besides those that the model of plans knows: none, since all of it
    was timed."""
    return 0.0


def load(name: str) -> Callable[..., None]:
    """The rung's callable ``run(a, b, c, fusion=None, **plan)``, compiled on first use.

    ``a``, ``b`` and ``c`` are all 2-D, or all 3-D with the batch first; ``fusion`` says what is
    asked besides the plain product (see fusion.py), None that nothing is. CPU tensors take the
    same source through the simulator, compiled by g++.

    Raises LookupError for an unknown name, RuntimeError without a working compiler, or without a
    GPU where the simulator does not run the rung.
    """
    rows = {row["name"]: row for row in KERNELS} | {own: {"devices": ("cpu",)} for own in OWN}
    if name not in rows:
        raise LookupError(f"unknown CUDA kernel {name!r}: choose from {', '.join(rows)}")

    import torch

    if not torch.cuda.is_available() and "cpu" not in rows[name]["devices"]:
        raise RuntimeError(
            f"the CUDA kernel {name!r} needs an NVIDIA GPU and torch sees none: "
            "check nvidia-smi and that torch was installed with CUDA (torch.version.cuda is "
            f"{torch.version.cuda})"
        )
    if torch.cuda.is_available():
        from . import nvrtc

        if nvrtc.in_use():
            from .nvrtc.operators import load as load_by_nvrtc

            return load_by_nvrtc(name)
    from .build.extensions import library
    from .handle import bound, gemm_of

    by_case = built_by_case(source(name))
    takes_aux = "preactivation" in rows[name].get("fuses", ())
    prepared: dict[Any, Any] = {}

    def library_for(device: int, defines: tuple[str, ...] = ()) -> Any:
        """The library of one GPU, and where there is one a case, of that case."""
        if (device, defines) not in prepared:
            capability = torch.cuda.get_device_capability(device)
            prepared[device, defines] = library(name, capability, defines)
        return prepared[device, defines]

    def run(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        fused = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
        start = bind(a, b, c, fusion, **plan)
        with torch.cuda.device(a.device) if a.is_cuda else nullcontext():
            start(a, b, c, *fused)

    def bind(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> Callable[..., None]:
        """The rung for products like this one: a function of (a, b, c, c_in, bias, scale_a,
        scale_b), the tensors of ``fusion``, none of which is kept."""
        if fusion is not None and fusion.aux and not takes_aux:
            raise ValueError(f"the CUDA kernel {name!r} takes no pre-activation")
        device = a.get_device()
        if device < 0:
            asked = () if fusion is None else (
                fusion.alpha, fusion.beta, fusion.epilogue, fusion.compute, fusion.mma_shape,
            )  # fmt: skip
            aux = fusion.aux if asked else ""
            from .simulator import run as simulate

            # What tables hold is for a GPU of more SMs than the simulator's.
            simulated = {} if name in tunings() else plan
            return lambda a, b, c, *tensors: simulate(
                name, a, b, c, Asked(*asked, *tensors, aux=aux) if asked else None, **simulated
            )
        defines = case(a.dtype, fusion, c.dtype, a.dim() == 3, by_case, plan) if by_case else ()
        kind = gemm_of(a, b, c, fusion, plan)
        return bound(name, library_for(device, defines), device, kind, fusion is None)

    run.bind = bind  # type: ignore[attr-defined]
    if torch.cuda.is_available() and not by_case:
        library_for(torch.cuda.current_device())
    return run


def plan_for(capability: tuple[int, int], gpu: str, sms: int) -> None:
    """Have plans be for that GPU, named as its table is, on a machine that has none; without a name
    for what stands for the capability by itself."""
    from .planning import forget
    from .planning.gpu import LIMITS, Gpu, shared_kb, stand_in, stands_for

    stands_for.pop(capability, None)
    if gpu:
        sms = sms or LIMITS.get(capability, LIMITS[9, 0])[0]
        shared = shared_kb(capability) * 1024
        stands_for[capability] = Gpu(gpu, sms, shared, stand_in(capability, sms))
    forget()


def derivative_kernel() -> Callable[..., Callable[..., None]] | None:
    """``bind`` of derivative.py; None where the kernel cannot be built."""
    if not _builds():
        return None
    from .derivative import bind

    return bind


COPIES = "copies"
"""The name of the copier's kernel, which is compiled ahead as a rung is."""

COPIED_US = (2.0, 2.2), 2.5
"""Microseconds of one copy and of two, by one launch, and of the kernel that reads them, besides
what they read, multiply and write. With 3.5 a copy and 5, eleven products behind two copies were
foretold to take a third longer than they did (reports/nvidia-h200/trials/races.csv and
drawn.csv)."""

ODD_C = 1.85e6
"""Bytes of a C in odd rows that are stored in a microsecond (csrc/sm90/odd_rows.cuh), with what the
kernel behind the product then waits for; in trials/races.csv from 20 to 160 MB."""


def copier(x: Any, copy: Any, *second: Any) -> Callable[..., None] | None:
    """``start(copy, x)``, which copies odd rows of 16-bit elements into aligned ones, or two
    matrices at once; see copies.py. None where the kernel cannot be built, or does not take such
    matrices."""
    if not _builds():
        return None
    from .copies import copier

    return copier(x, copy, *second)


def _builds() -> bool:
    """Whether a kernel that is no rung can be built: with nvcc and g++, of which the simulator
    needs g++ alone."""
    import torch

    from .build import extensions, toolchain

    if torch.cuda.is_available():
        from . import nvrtc

        if nvrtc.in_use():
            return False
        try:
            extensions.require_toolchain()
        except RuntimeError:
            return False
        return True
    return toolchain.find_cxx() is not None


STAGES = ("ptx", "sass")
"""The texts that ``inspect`` can give."""
LINED = ("lined", "files")
"""Further texts: the SASS with places in the source, and the PTX's numbers of files."""


def inspect(
    name: str, problem: Any, texts: bool = False, plan: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """What nvcc makes of the rung for the problem's GPU, with a plan, by default the rung's own.

    The instance that the problem would launch is picked by its symbol; where several are left,
    "instances" says how many, their counts are summed and the resources are the most of any.
    "shared bytes" leaves out what is asked for at the launch. With ``texts``, stage -> text.

    Compiling takes 2 to 60 s. Raises RuntimeError without nvcc or cuobjdump.
    """
    from collections import Counter

    from .build.inspection import compile_only, compiler, instances, source_lines
    from .build.toolchain import sm_of

    if plan is None:
        own = {row["name"]: row["plan"] for row in KERNELS}
        plan = own[name](problem) if name in own else {}
    defines = _defines(name, plan, problem)
    report = compile_only(name, sm_of(problem.capability or (9, 0)), defines, texts=texts)
    kernels = instances(name, report.kernels, problem, plan)
    counts: Counter[str] = Counter()
    for kernel in kernels:
        counts.update(kernel.sass)
    own, whole = source_lines(name)
    return {
        "compiler": compiler(),
        "target": report.target,
        "source": str(source(name)),
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
        }
        | {stage: kernels[0].texts.get(stage, "") for stage in (LINED if texts else ())},
    }


def _defines(name: str, plan: Mapping[str, Any], problem: Any) -> tuple[str, ...]:
    """The flags of the build that a problem takes."""
    macros = built_by_case(source(name))
    if not macros:
        return ()
    fusion = None if problem.plain else problem
    return case(problem.dtype_in, fusion, problem.dtype_out, problem.batch > 1, macros, plan)


def compiles(name: str, plan: Mapping[str, Any], problem: Any) -> list[str]:
    """The build that a product needs, in one line, whether it is there or not."""
    return [" ".join((name, *_defines(name, plan, problem)))]


def prepare(name: str, plan: Mapping[str, Any], problem: Any) -> int:
    """Build what a product needs where the store does not hold it; 1 where it was built.

    Takes 5 to 60 s, and no GPU. Raises RuntimeError, with the remedy, where a compiler, or torch's
    part for CUDA, is missing.
    """
    import torch

    from .build.extensions import build_ahead

    if torch.version.cuda is None:
        raise RuntimeError(
            f"torch {torch.__version__} is built without CUDA, whose headers a rung's library is "
            "compiled against: install a build of torch for CUDA"
        )
    return build_ahead(name, problem.capability or (9, 0), _defines(name, plan, problem))


def ready(name: str, plan: Mapping[str, Any], problem: Any) -> bool:
    """Whether a product on a GPU finds its kernel built; nothing is built or loaded."""
    from .build.extensions import is_built

    return is_built(name, problem.capability or (9, 0), _defines(name, plan, problem))
