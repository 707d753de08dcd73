"""What a compiler made of one rung: asked of its backend, and told in common words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...dispatch import Kernel
    from ...problem import Problem

GROUPS: dict[str, tuple[str, ...]] = {
    "wgmma": ("HGMMA", "IGMMA", "QGMMA", "BGMMA"),
    "mma": ("HMMA", "IMMA", "QMMA", "DMMA", "BMMA"),
    "FMA on CUDA cores": ("FFMA", "FFMA2", "HFMA2", "DFMA"),
    "TMA loads": ("UTMALDG",),
    "TMA stores": ("UTMASTG",),
    "bulk copies": ("UBLKCP",),
    "cp.async": ("LDGSTS",),
    "ldmatrix": ("LDSM",),
    "stmatrix": ("STSM",),
    "global loads": ("LDG", "LD"),
    "global stores": ("STG", "ST"),
    "shared loads": ("LDS",),
    "shared stores": ("STS",),
    "barriers of a block": ("BAR",),
    "barriers of a cluster": ("UCGABAR", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "mbarrier operations": ("SYNCS",),
    "local memory": ("LDL", "STL"),
}
"""What is counted -> opcodes of the machine code, without modifiers. Places in the code, not how
often they run."""

FACTS = (
    "compiler",
    "target",
    "instances",
    "registers",
    "spilled bytes",
    "shared bytes",
    "static shared bytes",
    "bytes of stages",
    "wgmma serialized",
    "seconds to compile",
    "lines of source",
    "lines with what is shared",
)


def inspector(
    row: Kernel, problem: Problem, stage: str | None
) -> Callable[[bool], Mapping[str, Any]]:
    """The backend's ``inspect`` of the rung, called with whether texts are wanted.

    Raises UnsupportedError where the rung refuses the problem or nothing of it can be compiled or
    shown; the callable raises ToolchainError where a compiler is missing or fails.
    """
    from ... import dispatch
    from ...errors import ToolchainError, UnsupportedError

    module = import_module(dispatch.BACKENDS[row.backend])
    inspect = getattr(module, "inspect", None)
    if inspect is None:
        others = [
            name
            for name, path in dispatch.BACKENDS.items()
            if hasattr(import_module(path), "inspect")
        ]
        raise UnsupportedError(
            f"{row.backend} is no source that could be compiled here: choose a kernel of "
            + " or ".join(others)
        )
    reason = row.why_not(problem)
    if reason is not None:
        raise UnsupportedError(f"{row.full_name} does not take {problem}: {reason}")
    stages = getattr(module, "STAGES", ())
    if stage is not None and stage not in stages:
        raise no_stage(row.full_name, stage, stages)

    def run(texts: bool) -> Mapping[str, Any]:
        try:
            # Of a backend that offers plans the row has one of its own for the problem.
            own = {"plan": row.plan(problem)} if hasattr(module, "plans") else {}
            found: Mapping[str, Any] = inspect(row.name, problem, texts, **own)
        except (RuntimeError, ValueError) as error:
            raise ToolchainError(f"{row.full_name}: {str(error).strip()}") from error
        return found

    return run


def no_stage(kernel: str, stage: str, stages: Any) -> Exception:
    """The error of a text that a backend does not have."""
    from ...errors import UnsupportedError

    return UnsupportedError(
        f"{kernel} has no {stage}: its stages are {', '.join(stages) or 'none that can be shown'}"
    )


def describe(row: Kernel, problem: Problem, found: Mapping[str, Any]) -> dict[str, Any]:
    """What ``inspect`` found, in the words of FACTS and GROUPS; a fact it does not know is None."""
    from ...problem import stage_bytes

    plan = dict(row.plan(problem))
    counts = found.get("counts", {})
    facts = {name: found.get(name) for name in FACTS}
    facts["bytes of stages"] = stage_bytes(plan, problem) if "NUM_STAGES" in plan else None
    facts["wgmma serialized"] = found.get("serialized")
    facts["seconds to compile"] = found.get("seconds")
    facts["lines of source"] = found.get("lines")
    return {
        "kernel": row.full_name,
        "plan": plan,
        "facts": facts,
        "instances built": found.get("instances built"),
        "counts": {
            group: sum(counts.get(opcode, 0) for opcode in opcodes)
            for group, opcodes in GROUPS.items()
        },
        "instructions": sum(counts.values()),
        "texts": dict(found.get("texts", {})),
        "source": found.get("source"),
    }


def made_by(shown: Mapping[str, Any], problem: Problem) -> str:
    """By which compiler, for what: of what ``describe`` gave."""
    facts = shown["facts"]
    return f"{facts['compiler']} for {facts['target']}, {problem}"
