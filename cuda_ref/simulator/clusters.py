"""The clusters that a kernel declares by ``__cluster_dims__``, for a launch that names none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..build.toolchain import text_of

MAX_CLUSTER = 8  # blocks; as in include/runtime.hpp
_DECLARES = "__cluster_dims__"
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_ATTRIBUTE = re.compile(r"__cluster_dims__|__launch_bounds__")
_KERNEL = re.compile(
    r"(?:template\s*<([^;{}()]*)>\s*)?((?:@\d+@|static|inline|void|extern|\s)*__global__"
    r"(?:@\d+@|[\w\s:*&])*?)\b(\w+)\s*\("
)


def in_clusters(source: Path, headers: Sequence[Path], scratch: Path) -> Path:
    """What is to be compiled of a .cu file: itself, or where it or one of its headers declares
    clusters, a file in ``scratch`` that is the source and tells the runtime of their extents.

    The extents are those of every launch that names none, a header's kernels included.

    Raises RuntimeError where it declares several, or has another kernel that declares none, as a
    launch does not say whose it is; and where the extents are no numbers of the file.
    """
    found = {extents for file in (source, *headers) for extents in _extents_in(file, source)}
    if len(found) > 1:
        raise RuntimeError(
            f"{source.name} declares clusters of {' and of '.join(sorted(found))} blocks, and the "
            "simulator takes one kind to a file: start the others by launch_clusters"
        )
    if not found:
        return source
    told = scratch / "in_clusters.cu"
    told.write_text(
        f'#include "{source}"\n'
        'extern "C" __attribute__((visibility("hidden"))) const unsigned\n'
        f"    tcgemm_declared_cluster = tcgemm::simulator::cluster_of({found.pop()});\n"
    )
    return told


def refusal(asked: Any) -> str:
    """Why the runtime takes no launch of this grid, block and cluster (abi.Launch)."""
    grid, block, cluster = tuple(asked.grid), tuple(asked.block), asked.cluster
    if cluster >> 31:  # src/processes.cpp: x, y and z of one that does not lie along x
        extents = tuple(cluster >> at & 0x3FF for at in (0, 10, 20))
        return f"its cluster of {extents} blocks does not lie along x, as the simulator's do"
    if cluster > MAX_CLUSTER:
        return f"its cluster has {cluster} blocks, and the simulator takes {MAX_CLUSTER} at most"
    if cluster and grid[0] % cluster:
        return f"its grid of {grid} blocks is no multiple of its cluster of ({cluster}, 1, 1)"
    shared = asked.shared_dynamic
    return (
        f"it asks for too large a grid, block or shared memory: {grid} blocks of {block} threads "
        f"with {shared:,} bytes"
    )


def _extents_in(file: Path, source: Path) -> set[str]:
    text = _COMMENT.sub(lambda found: found[1] or " ", text_of(file))
    if _DECLARES not in text:
        return set()
    text, extents = _without_attributes(text, file)
    declaring, others = set(), set()
    for template, before, name in _KERNEL.findall(text):
        marks = [int(mark) for mark in re.findall(r"@(\d+)@", before)]
        if not marks:
            others.add(name)
            continue
        declaring.add(name)
        parameters = {
            part.split("=")[0].split()[-1] for part in template.split(",") if part.strip()
        }
        named = sorted(parameters & set(re.findall(r"\w+", extents[marks[0]])))
        if named:
            raise RuntimeError(
                f"{name} of {file.name} declares a cluster of {extents[marks[0]]} blocks, and "
                f"{named[0]} is a parameter of its template and has no value before a launch: "
                "start it by launch_clusters"
            )
    if not declaring or any(not value for value in extents):
        raise RuntimeError(
            f"{file.name} has a {_DECLARES} that the simulator does not understand: write it with "
            f"its extents between __global__ and the kernel's name, as {_DECLARES}(2, 1, 1)"
        )
    others -= declaring
    if others and file == source:
        raise RuntimeError(
            f"{file.name} declares clusters for {', '.join(sorted(declaring))} and none for "
            f"{', '.join(sorted(others))}, and the simulator cannot tell their launches apart: "
            "keep them in two files, or start the first by launch_clusters without declaring"
        )
    return set(extents)


def _without_attributes(text: str, file: Path) -> tuple[str, list[str]]:
    """The text with @i@ in place of the i-th __cluster_dims__ and no attributes; the extents."""
    parts, extents, done = [], [], 0
    for found in _ATTRIBUTE.finditer(text):
        if found.start() < done:
            continue
        begin = re.compile(r"\s*\(").match(text, found.end())
        end = _closing(text, begin.end()) if begin else -1
        parts.append(text[done : found.start()])
        done = end + 1 if begin and end >= 0 else found.end()
        if found[0] == _DECLARES:
            parts.append(f" @{len(extents)}@ ")
            inside = text[begin.end() : end] if begin and end >= 0 else ""
            extents.append(" ".join(inside.split()))
    marked = "".join([*parts, text[done:]])
    return re.sub(r"(?m)^(\s*#.*)$", r"\1;", marked), extents  # a macro belongs to no kernel


def _closing(text: str, at: int) -> int:
    """Where the parenthesis closes that has been opened before ``at``, or -1."""
    depth = 1
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return -1
