"""What a compiler made of a source, kept with the digest of all that it was made from.

A test that looks at registers or at machine instructions asks here instead of compiling. A record
whose digest is that of today's sources, arguments and compiler is trusted. Any other is made anew
by the compiler and written below ``tests/compiled/``, where ``git diff`` shows what a change did.
tests/test_records.py has a few drawn records made anew in every run, and ``make records`` all of
them: TCGEMM_RECORDS=renew trusts none. ``records.py FOLDER`` makes those of the folder that no test
has asked for since, by their keys.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, fields
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import compiling
from tcgemm.cuda_ref.build import inspection, toolchain

compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")

FOLDER = Path(__file__).parent / "compiled"
RENEW = os.environ.get("TCGEMM_RECORDS") == "renew"

OPCODES = frozenset({
    "BAR", "CCTL", "DMMA", "FFMA", "HGMMA", "HMMA", "IGMMA", "IMMA", "LD", "LDG", "LDGSTS", "LDL",
    "LDS", "LDSM", "MOVM", "QGMMA", "STG", "STL", "UCGABAR", "USETMAXREG", "UTMALDG", "UTMASTG",
    "WARPGROUP",
})  # fmt: skip
"""The machine instructions that a record counts: those that tests ask for."""

_made_here: dict[tuple[str, str], dict[str, Any]] = {}
_digests: dict[str, str] = {}


class Counts(Counter[str]):
    """Instructions by opcode. One that records do not count is an error, and never 0."""

    def __missing__(self, opcode: str) -> int:
        if opcode not in OPCODES:
            raise KeyError(f"records do not count {opcode}: add it to OPCODES, run `make records`")
        return 0


def triton(requests: Sequence[Any]) -> list[Any]:
    """The ``compile_only.Compiled`` of each ``compile_only.Request``, without its texts."""
    facts = [
        {"compiler": triton_compiler(), "made_from": digest} for digest in triton_digests(requests)
    ]
    files = [f"triton-{request.kernel}" for request in requests]
    found = [
        current(file, triton_key(request), fact)
        for file, request, fact in zip(files, requests, facts, strict=True)
    ]
    stale = [i for i, value in enumerate(found) if value is None]
    if stale:
        for i, value in zip(stale, make_triton([requests[i] for i in stale]), strict=True):
            found[i] = value
            keep(files[i], triton_key(requests[i]), facts[i], value)
    return [
        compile_only.Compiled(**{**value, "counts": Counts(value["counts"])}) for value in found
    ]


def cuda(name: str, target: str, defines: tuple[str, ...] = ()) -> inspection.CompileReport:
    """What ``inspection.compile_only`` returns, without its seconds."""
    file, key = f"cuda-{name}", " ".join((name, target, *defines))
    facts = cuda_facts(key)
    value = current(file, key, facts)
    if value is None:
        value = make_cuda(key)
        keep(file, key, facts, value)
    kernels = [
        inspection.KernelReport(symbol, **{**made, "sass": Counts(made["sass"])})
        for symbol, made in value["kernels"].items()
    ]
    return inspection.CompileReport(name, target, 0.0, tuple(kernels), value["serialized"])


# What the compilers make.


def make_triton(requests: Sequence[Any], fresh: bool = RENEW) -> list[dict[str, Any]]:
    """Compiles the requests to what their records hold; ``fresh``: past Triton's own cache."""
    return [
        {
            "registers": built.registers,
            "spill_bytes": built.spill_bytes,
            "shared_bytes": built.shared_bytes,
            "serialized": built.serialized,
            "counts": _counted(built.counts),
            "log": _warnings(built.log),
        }
        for built in compile_only.compile_rungs(requests, fresh=fresh)
    ]


def make_cuda(key: str) -> dict[str, Any]:
    """Compiles what the key names to what its record holds."""
    name, target, *defines = key.split()
    report = inspection.compile_only(name, target, tuple(defines))
    return {
        "serialized": report.serialized,
        "kernels": {
            _UNNAMED.sub(r"\1", kernel.symbol): {
                "registers": kernel.registers,
                "spill_bytes": kernel.spill_bytes,
                "static_shared_bytes": kernel.static_shared_bytes,
                "sass": _counted(kernel.sass),
            }
            for kernel in report.kernels
        },
    }


_UNNAMED = re.compile(r"(?<=_GLOBAL__N__)[0-9a-f]{8}(_\d+_\w+?_cu_)[0-9a-f]{8}")
"""Digits in the name of an unnamed namespace, which depend on folders."""


def _counted(counts: Any) -> dict[str, int]:
    return {opcode: counts[opcode] for opcode in sorted(OPCODES) if counts.get(opcode)}


def _warnings(log: str) -> str:
    """What ptxas says beside the resources, which have fields of their own."""
    said = ("ptxas info    : (C", "ptxas warning", "warning", "error")
    return "\n".join(line for line in log.splitlines() if line.startswith(said))


# What they make it from.


def triton_key(request: Any) -> str:
    """The request as JSON, without what is as ever."""
    given = asdict(request)
    usual = {field.name: field.default for field in fields(request)}
    return json.dumps({name: value for name, value in given.items() if value != usual[name]})


def triton_request(key: str) -> Any:
    """The request that a key names."""
    given = json.loads(key)
    if "capability" in given:
        given["capability"] = tuple(given["capability"])
    return compile_only.Request(**given)


def triton_digests(requests: Sequence[Any]) -> list[str]:
    """A digest for each request: of the kernel's code with all that it calls, without comments; of
    its arguments' types, alignments and constants; of the compiler's options and target. Empty
    where no launch can be formed, which compiling then says.

    A child process asks Triton for those that were not asked for before, because here the kernels
    are interpreted. Nothing is compiled.
    """
    new = [request for request in requests if repr(request) not in _digests]
    if new:
        program = str(Path(__file__).parent / "triton_digests.py")
        child = compiling.run(program, given=json.dumps([asdict(request) for request in new]))
        if child.returncode:
            raise RuntimeError(f"Triton gives no digests of {len(new)} kernels:\n{child.stderr}")
        digests = json.loads(child.stdout.splitlines()[-1])
        _digests.update(zip(map(repr, new), digests, strict=True))
    return [_digests[repr(request)] for request in requests]


def triton_compiler() -> str:
    """``triton`` and its version: ptxas and nvdisasm come with it."""
    return f"triton {version('triton')}"


def cuda_facts(key: str) -> dict[str, str]:
    """What a current record of that key has to have been made from."""
    name, target, *defines = key.split()
    made_from = cuda_digest(name, target, tuple(defines))
    return {"compiler": nvcc_version(), "made_from": made_from}


nvcc_version = cache(inspection.compiler)


def cuda_digest(
    name: str, target: str, defines: tuple[str, ...], root: Path = toolchain.ROOT
) -> str:
    """A digest of the flags and of a rung's source with the files of ours that it includes, without
    comments: where files lie and what they are called makes no machine code. CUDA's own headers are
    the compiler's, which a record names."""
    flags = " ".join((*toolchain.nvcc_flags(target), *defines))
    text = " ".join(whole_source(toolchain.source(name, root), root).split())
    return hashlib.sha256(f"{flags}\0{text}".encode()).hexdigest()[:16]


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*[\s\S]*?\*/')


def whole_source(path: Path, root: Path, seen: set[Path] | None = None) -> str:
    """A C++ source without comments, with each file of ours included once and in its place."""
    seen = set() if seen is None else seen
    seen.add(path.resolve())
    lines = []
    for line in without_comments(path.read_text()).splitlines():
        included = _INCLUDE.match(line)
        folders = (path.parent, *toolchain.source_folders(root)) if included else ()
        file = next((f / included[1] for f in folders if (f / included[1]).is_file()), None)
        if file is not None:
            line = "" if file.resolve() in seen else whole_source(file, root, seen)
        if line.split() != ["#pragma", "once"]:
            lines.append(line)
    return "\n".join(lines)


def without_comments(source: str) -> str:
    """A C++ source with a blank in place of each comment."""
    return _COMMENT.sub(lambda match: match[1] or " ", source)


# Where records are kept: a JSON file a kernel.


def current(file: str, key: str, facts: dict[str, str]) -> dict[str, Any] | None:
    """The record's value where it was made from these facts; what was made in this run in any
    case; else None."""
    if (file, key) in _made_here:
        return _made_here[file, key]
    entry = read(file).get(key)
    if (
        RENEW
        or entry is None
        or not facts["made_from"]
        or any(entry[name] != fact for name, fact in facts.items())
    ):
        return None
    return dict(entry["made"])


def keep(file: str, key: str, facts: dict[str, str], value: dict[str, Any]) -> None:
    """Writes the record, beside what other processes write."""
    _made_here[file, key] = value
    try:
        with _exclusive():
            entries = _load(file)
            entries[key] = {**facts, "made": value}
            path = FOLDER / f"{file}.json"
            unfinished = path.with_suffix(".tmp")
            unfinished.write_text(_text(entries))
            unfinished.replace(path)
    except OSError:
        print(f"the record of {key} cannot be kept in {FOLDER}", file=sys.stderr)


def make_left(before: Path) -> list[str]:
    """Makes the records of a folder that are not kept, by their keys.

    Returns those of which nothing can be made, as of a kernel that is gone: they are left out.
    """
    left = [
        (path.stem, key)
        for path in sorted(before.glob("*.json"))
        for key in json.loads(path.read_text())
        if key not in _load(path.stem)
    ]
    cores = len(os.sched_getaffinity(0))
    of_triton = [key for file, key in left if file.startswith("triton-")]
    together = [of_triton[first::cores] for first in range(cores) if of_triton[first:]]
    alone = [[key] for file, key in left if file.startswith("cuda-")]
    with ThreadPoolExecutor(cores) as pool:
        return [key for failed in pool.map(_made_by_keys, [*together, *alone]) for key in failed]


def _made_by_keys(keys: list[str]) -> list[str]:
    """Makes the records of keys, all of one compiler. Returns the keys of which it makes none."""
    try:
        if keys[0].startswith("{"):
            triton([triton_request(key) for key in keys])
        else:
            name, target, *defines = keys[0].split()
            cuda(name, target, tuple(defines))
        return []
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        if len(keys) > 1:  # all but one of them may be well
            middle = len(keys) // 2
            return [*_made_by_keys(keys[:middle]), *_made_by_keys(keys[middle:])]
        print(f"{keys[0]} is left out: {error}", file=sys.stderr)
        return keys


def kept() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(file, key, entry) of every record, in the order of their names."""
    for path in sorted(FOLDER.glob("*.json")):
        for key, entry in read(path.stem).items():
            yield path.stem, key, entry


def _text(entries: dict[str, Any]) -> str:
    """JSON with a line for each record and each of its kernels: a diff shows what changed."""
    lines = []
    for key in sorted(entries):
        entry = entries[key]
        made = dict(entry["made"])
        kernels = made.pop("kernels", None)
        text = json.dumps({**entry, "made": made})
        if kernels is not None:
            inner = ",\n".join(f"  {json.dumps(s)}: {json.dumps(k)}" for s, k in kernels.items())
            text = f'{text[:-2]}, "kernels": {{\n{inner}\n }}}}}}'
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@cache
def read(file: str) -> dict[str, Any]:
    """The file's records as they stood when first asked for."""
    return _load(file)


def _load(file: str) -> dict[str, Any]:
    path = FOLDER / f"{file}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


@contextmanager
def _exclusive() -> Iterator[None]:
    """One writer at a time: a lock on the folder, which ends with its process."""
    FOLDER.mkdir(exist_ok=True)
    descriptor = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    make_left(Path(sys.argv[1]))
