"""``tcgemm new-kernel``: a file that runs at once, to begin a kernel of one's own from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ..errors import OperandError, ResultsError, UnknownNameError

SUFFIXES = {"cuda": ".cu", "triton": ".py"}


def new_kernel(
    name: Annotated[str, typer.Argument(help="Of the kernel and its file.", metavar="NAME")],
    language: Annotated[
        str, typer.Option(help="In which it is written.", metavar="cuda|triton")
    ] = "cuda",
    folder: Annotated[Path, typer.Option("--dir", help="Where to write it.")] = Path("."),
) -> None:
    """Write a kernel that is right for any size, to be made fast. Never overwrites a file."""
    if language not in SUFFIXES:
        raise UnknownNameError(f"unknown language {language!r}: choose from {', '.join(SUFFIXES)}")
    if not name.isidentifier() or not name.isascii():
        raise OperandError(
            f"{name!r} is no name of a function: letters, digits and _, e.g. my_gemm"
        )
    suffix = SUFFIXES[language]
    path = folder / f"{name}{suffix}"
    if path.exists():
        raise ResultsError(f"{path} exists: choose another name, or remove it")
    template = files("tcgemm.own").joinpath("templates", f"kernel{suffix}").read_text()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(template.replace("NAME", name))
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}") from None
    shown = shlex.quote(str(path))
    first = f"simulate {shown} --check" if suffix == ".cu" else f"verify --kernel {shown}"
    typer.echo(f"{path}: try\n  tcgemm {first}\nthen\n  tcgemm bench --kernel {shown}")
