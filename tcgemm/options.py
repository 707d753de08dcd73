"""Options that several commands share: one name, one meaning, one text of help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from .gpus import GPUS
from .problem import COMPUTES, LAYOUTS, OUTPUTS
from .vocabulary import WITHOUT_TORCH


def completed(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A shell's completion of an option: those of the names that begin as what is typed."""
    known = tuple(names)
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def complete_kernel(incomplete: str) -> list[str]:
    """The kernels of both languages, by name; "cuda/..." by backend and name."""
    rows: list[tuple[str, dict[str, Any]]] = [
        (backend, row)
        for backend, module in WITHOUT_TORCH.items()
        for row in import_module(module).KERNELS
    ]
    full = [f"{backend}/{row['name']}" for backend, row in rows]
    names = full if "/" in incomplete else [*(row["name"] for _, row in rows), *full]
    return completed(dict.fromkeys(names))(incomplete)


_LAYOUT = "A then B, t is stored transposed."
_LAYOUTS = "nn|nt|tn|tt"

Backends = Annotated[
    list[str] | None,
    typer.Option(
        help="Only this backend. Repeatable.",
        metavar="NAME",
        autocompletion=completed([*WITHOUT_TORCH, "cublas"]),
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Option(
        help="Only this kernel, backend/kernel, or your own .cu or .py file. Repeatable.",
        metavar="NAME",
        autocompletion=complete_kernel,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="Of A and B, e.g. float16, int8.", metavar="NAME", autocompletion=completed(OUTPUTS)
    ),
]
DtypeOfKernel = Annotated[
    str | None,
    typer.Option(
        help="Of A and B, e.g. float16, int8; by default bfloat16, or what the kernel takes.",
        metavar="NAME",
        autocompletion=completed(OUTPUTS),
    ),
]
OutDtype = Annotated[
    str | None,
    typer.Option(
        help="Of C; by default the dtype's own.",
        metavar="NAME",
        autocompletion=completed(dict.fromkeys(out for outs in OUTPUTS.values() for out in outs)),
    ),
]
Layout = Annotated[
    str, typer.Option(help=_LAYOUT, metavar=_LAYOUTS, autocompletion=completed(LAYOUTS))
]
Layouts = Annotated[
    list[str] | None,
    typer.Option(
        help=f"{_LAYOUT} Repeatable.", metavar=_LAYOUTS, autocompletion=completed(LAYOUTS)
    ),
]
Compute = Annotated[
    str | None,
    typer.Option(
        help="How products are summed: tf32, ieee, ...",
        metavar="NAME",
        autocompletion=completed(dict.fromkeys(way for ways in COMPUTES.values() for way in ways)),
    ),
]
Board = Annotated[
    str | None,
    typer.Option(
        help="h200, a100, ...; by default the one here, else h200.",
        autocompletion=completed(
            dict.fromkeys(
                name
                for gpu in GPUS
                for name in (gpu.slug.removeprefix("nvidia-").removeprefix("geforce-"), gpu.slug)
            )
        ),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
