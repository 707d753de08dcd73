"""What a user's file says of itself, read without running it. Imports no torch."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OperandError
from ..problem import OUTPUTS

LANGUAGES = {".cu": "CUDA", ".py": "Triton"}
_LINE = re.compile(r"^// tcgemm: (.*)$", re.M)
_PAIR = re.compile(r"(\w+) -> (\w+)")
_MULTIPLE = re.compile(r"multiples of (\d+)")


@dataclass(frozen=True, slots=True)
class Facts:
    path: Path
    language: str
    pairs: tuple[tuple[str, str], ...]
    """(dtype of A and B, of C) that it takes."""
    multiple: int
    """M, N and K have to be multiples of it."""


def facts_of(path: Path) -> Facts:
    """What the file takes.

    Raises OperandError where it is no .cu or .py file, or says something that cannot be read.
    """
    if path.suffix not in LANGUAGES or not path.is_file():
        raise OperandError(f"{path} is no .cu or .py file: 'tcgemm new-kernel NAME' writes one")
    if not path.stem.isidentifier():
        raise OperandError(
            f"{path.name}: name the file after the kernel, e.g. my_gemm{path.suffix}"
        )
    pairs: list[tuple[str, str]] = []
    multiple = 1
    if path.suffix == ".cu":
        for line in _LINE.findall(path.read_text(encoding="utf-8-sig", errors="replace")):
            found = _PAIR.findall(line)
            number = _MULTIPLE.search(line)
            if not found and not number:
                raise OperandError(
                    f"{path.name}: '// tcgemm: {line}' is neither 'float16 -> float16' nor "
                    "'multiples of 16'"
                )
            pairs += found
            multiple = int(number[1]) if number else multiple
    else:
        said = _assigned(path)
        multiple = said.get("MULTIPLE", 1)
        try:
            pairs = [(str(dtype), str(out)) for dtype, out in said.get("PAIRS", ())]
        except (TypeError, ValueError):
            raise OperandError(
                f'{path.name}: PAIRS is a list of pairs, e.g. [("float16", "float16")]'
            ) from None
    pairs = pairs or [("float16", "float16")]
    for dtype, out in pairs:
        if out not in OUTPUTS.get(dtype, ()):
            known = "; ".join(f"{name} -> {' or '.join(outs)}" for name, outs in OUTPUTS.items())
            raise OperandError(f"{path.name}: {dtype} -> {out} is no type pair: {known}")
    if type(multiple) is not int or multiple < 1:
        raise OperandError(f"{path.name}: multiples of {multiple}: name a number of 1 or more")
    return Facts(path, LANGUAGES[path.suffix], tuple(pairs), multiple)


def _assigned(path: Path) -> dict[str, Any]:
    """The constants PAIRS and MULTIPLE of a .py file."""
    try:
        tree = ast.parse(path.read_bytes())  # which obeys a BOM and a declared encoding
    except SyntaxError as error:
        raise OperandError(f"{path.name}, line {error.lineno}: {error.msg}") from None
    except ValueError as error:
        raise OperandError(f"{path.name}: {error}") from None
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("PAIRS", "MULTIPLE"):
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError:
                    raise OperandError(
                        f"{path.name}, line {node.lineno}: {name} has to be a constant"
                    ) from None
    return found
