"""Which line of a kernel's source each line of its PTX and SASS comes from.

The compilers write it down: PTX has ``.loc`` in front of instructions, and nvdisasm prints what
the line table of a cubin says. Where a function was inlined, both name the chain of calls; the line
that counts is the outermost one in the kernel's own file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Lines = tuple[tuple[str, int], ...]
"""(text, line of the source, 0 where it comes from none)."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A kernel as its source, PTX and SASS."""

    kernel: str
    """backend/name."""
    made: str
    """By which compiler, for which target and problem."""
    file: str
    source: tuple[str, ...]
    ptx: Lines
    sass: Lines


def listing(kernel: str, made: str, source: Path, texts: Mapping[str, str]) -> Listing:
    """Of what a backend's ``inspect`` found.

    Raises UnsupportedError where its texts have no line table.
    """
    from ...errors import UnsupportedError

    if not texts.get("lined") or not texts.get("ptx"):
        raise UnsupportedError(
            f"{kernel} comes without a line table: nvdisasm reads it, and comes with Triton's "
            "wheel (pip install triton)"
        )
    calls = Calls(source, texts.get("files", "") + texts["ptx"])
    return Listing(
        kernel,
        made,
        source.name,
        tuple(source.read_text(errors="replace").splitlines()),
        ptx_lines(texts["ptx"], texts.get("files", ""), calls),
        sass_lines(texts["lined"], calls),
    )


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"', re.MULTILINE)


class Calls:
    """Where a kernel's own file calls what other files define.

    Triton leaves the chain of calls out where it makes several instructions of one, as for wgmma:
    then the place is in the function that is called, and the line is that of the call, if there is
    one call of it.
    """

    def __init__(self, source: Path, files: str = "") -> None:
        self.own = source.name
        self._source = source.read_text(errors="replace") if source.is_file() else ""
        self._paths = {
            Path(name).name: Path(folder, name) for _, folder, name in _FILE.findall(files)
        }

    def line_of(self, chain: Sequence[tuple[str, str]]) -> int:
        """The line in the own file that a chain of (file, line) comes from, innermost first."""
        mine = [int(line) for file, line in chain if Path(file).name == self.own]
        if mine:
            return mine[-1]
        file, line = chain[-1]
        return self._of_call(Path(file).name, int(line))

    @cache  # noqa: B019
    def _of_call(self, file: str, line: int) -> int:
        path = self._paths.get(file)
        if path is None or path.suffix != ".py" or not path.is_file():
            return 0
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
                calls = ast.walk(ast.parse(self._source))
                found = [
                    call.lineno
                    for call in calls
                    if isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == node.name
                ]
                return found[0] if len(found) == 1 else 0
        return 0


_LOC = re.compile(r"^\s*\.loc\s+(\d+) (\d+) (\d+)(?:.*inlined_at (\d+) (\d+) (\d+))?")
_PLACE = re.compile(r"([^\s/]+\.py):(\d+)")
_NOISE = re.compile(r"^\s*(//.*|\$L__(tmp|func|info)\w*:|\.section.*|)$")


def ptx_lines(ptx: str, files: str, calls: Calls) -> Lines:
    """The kernel's lines, without directives of debugging."""
    numbers = {n for n, _, path in _FILE.findall(files + ptx) if Path(path).name == calls.own}
    known: dict[tuple[str, ...], int] = {}
    found: list[tuple[str, int]] = []
    line, inside = 0, False
    for text in ptx.splitlines():
        inside = inside or ".entry" in text
        if loc := _LOC.match(text):
            places = _PLACE.findall(text)
            here, outer = loc.groups()[:3], loc.groups()[3:]
            if places:
                line = calls.line_of(places)
            elif outer[0]:
                line = known.get(outer, int(outer[1]) if outer[0] in numbers else 0)
            else:
                line = int(here[1]) if here[0] in numbers else 0
            known[here] = line
        elif inside and not _NOISE.match(text):
            code = text.expandtabs(4).split("//")[0].rstrip()
            found.append((_readable(code, Path(calls.own).stem), line))
            if text.startswith("}"):
                break
    # The head of the kernel and its declarations come before the first place.
    return tuple((text, 0 if _declares(text) else at) for text, at in found)


def _readable(text: str, kernel: str) -> str:
    """Mangled names of the kernel, of its parameters and of its arrays, as the source has them."""
    if "_Z" not in text:
        return text
    text = re.sub(r"\b_ZZ\w+E\d+([A-Za-z_]\w*)\b", r"\1", text)
    text = re.sub(r"\b_Z\w+_param_(\d+)\b", r"param_\1", text)
    return re.sub(r"\b_Z\w+\b", kernel, text)


def _declares(text: str) -> bool:
    return text.lstrip().startswith((".visible", ".entry", ".param", ".reg", ".shared", ")", "{"))


_CHAIN = re.compile(r'"([^"]+)", line (\d+)')
_MACHINE = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(.*?)\s*(?:/\*.*)?$")


def sass_lines(lined: str, calls: Calls) -> Lines:
    """The instructions of one kernel and their labels, from ``nvdisasm -gi``."""
    found: list[tuple[str, int]] = []
    line = 0
    chain: list[tuple[str, str]] = []
    for text in lined.splitlines():
        if "//## File" in text:
            chain += _CHAIN.findall(text)
            continue
        if chain:
            line, chain = calls.line_of(chain), []
        if machine := _MACHINE.match(text):
            found.append((f"{machine[1]}  {machine[2]}", line))
        elif re.match(r"^\.L_\w+:", text):
            found.append((text.strip(), 0))
        elif found and text.startswith("\t.section"):
            break
    return tuple(found)


def as_record(shown: Listing) -> dict[str, Any]:
    """Plain values, for JSON; ``from_record`` takes them back."""
    return {name: getattr(shown, name) for name in Listing.__slots__}


def from_record(record: Mapping[str, Any]) -> Listing:
    lines = {name: tuple((text, at) for text, at in record[name]) for name in ("ptx", "sass")}
    return Listing(**{**record, "source": tuple(record["source"]), **lines})
