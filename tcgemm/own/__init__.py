"""A user's own kernels as a backend, ``own``: .cu and .py files that are treated as any rung.

``register.names`` puts files into the environment variable TCGEMM_OWN_KERNELS, so that processes
that are started later know them too; here they become rows and callables. What a file takes stands
in it: ``// tcgemm: ...`` lines of a .cu file, PAIRS and MULTIPLE of a .py file (``facts``). A file
is compiled or imported, and so run, with the rights of the user who named it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..errors import ToolchainError, UnsupportedError
from .facts import Facts, facts_of

VARIABLE = "TCGEMM_OWN_KERNELS"
"""Environment variable: paths of the files, with os.pathsep between them."""
STAGES = ("ttgir", "ptx", "sass")

_CUDA = "tcgemm.cuda_ref"


def paths() -> dict[str, Path]:
    """Kernel name -> file, of all files that are registered."""
    named = filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))
    return {Path(path).stem: Path(path) for path in named}


def __getattr__(name: str) -> Any:
    if name == "KERNELS":
        return tuple(_row(name, facts_of(path)) for name, path in paths().items())
    raise AttributeError(name)


def _row(name: str, facts: Facts) -> dict[str, Any]:
    multiple = facts.multiple

    def refuse(problem: Any) -> str | None:
        sizes = {"M": problem.M, "N": problem.N, "K": problem.K}
        odd = [f"{side}={size}" for side, size in sizes.items() if size % multiple]
        if odd:
            return f"{', '.join(odd)} is no multiple of {multiple}, as its file says it needs"
        if problem.K == 0 or problem.batch > 1:
            return "a kernel of one's own is asked for one product with K of 1 or more"
        return None

    return {
        "name": name,
        "adds": f"{facts.language}, from {facts.path.name}",
        "pairs": facts.pairs,
        "kind": "shape",
        "devices": ("cpu", "cuda"),
        "shapes": f"multiples of {multiple}" if multiple > 1 else "any shape and strides",
        "refuse": refuse,
        "plan": lambda problem: {},
        "deterministic": False,
    }


def load(name: str) -> Callable[..., None]:
    """The callable ``run(a, b, c)`` of one file.

    Raises LookupError where no such file is registered, RuntimeError where it does not run.
    """
    if name not in paths():
        raise LookupError(f"no kernel {name!r} in {VARIABLE}")
    path = paths()[name]
    return _cuda(name, path) if path.suffix == ".cu" else _python(path)


def _source(name: str, path: Path) -> str:
    """Registers the file as a source of the CUDA toolchain; the name that it has there."""
    known: dict[str, Path] = import_module(f"{_CUDA}.build.toolchain").OWN
    known[f"own_{name}"] = path
    return f"own_{name}"


def _cuda(name: str, path: Path) -> Callable[..., None]:
    as_a_rung = import_module(_CUDA).load(_source(name, path))

    def run(a: Any, b: Any, c: Any, fusion: Any = None) -> None:
        _plain(name, fusion)
        as_a_rung(a, b, c)

    return run


@cache
def _module(path: Path) -> Any:
    """The file, imported. A machine without a GPU runs Triton in its interpreter."""
    import_module("tcgemm.triton_kernels.host.runtime")  # which decides for one or the other
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(f"tcgemm_own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ToolchainError(
            f"{path} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(getattr(module, "run", None)):
        raise ToolchainError(f"{path} defines no run(a, b, c), which has to write C = A @ B into c")
    return module


def _python(path: Path) -> Callable[..., None]:
    module = _module(path)

    def run(a: Any, b: Any, c: Any, fusion: Any = None) -> None:
        _plain(path.stem, fusion)
        module.run(a, b, c)

    return run


def _plain(name: str, fusion: Any) -> None:
    if fusion is not None:
        raise UnsupportedError(f"own/{name} is asked for plain products, and not for {fusion}")


def inspect(name: str, problem: Any, texts: bool = False) -> dict[str, Any]:
    """What nvcc makes of a .cu file, or Triton of the kernels that a .py file launches."""
    path = paths()[name]
    if path.suffix != ".cu":
        of_file = import_module("tcgemm.triton_kernels.inspection.of_file")
        return dict(of_file.inspect_file(path, problem, texts))
    shown: dict[str, Any] = import_module(_CUDA).inspect(_source(name, path), problem, texts)
    return shown
