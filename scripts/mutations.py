"""The table of faults that scripts/mutate plants, and the files that they stand in."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

CLASSES = (
    "dropped K tail",
    "off-by-one mask",
    "wrong wait count",
    "missing barrier",
    "wrong parity",
    "beta ignored",
    "stale accumulator",
    "swapped scale",
    "wrong stride",
    "wrong table row",
    "missing version bump",
    "wrong bound",
    "wrong order",
    "missing check",
    "wrong rounding",
    "wrong key",
    "wrong arithmetic",
)
"""Kinds of faults. A table of mutations names one for each."""


@dataclass(frozen=True)
class Mutation:
    """One fault: `before`, which stands once in `file`, becomes `after`."""

    name: str
    file: str
    fault: str
    """One of CLASSES."""
    what: str
    before: str
    after: str
    seen_by: str
    """Name of the table's selection of tests."""
    tests: tuple[str, ...]
    """Test files, each with a `::` and the name of a test where it is one."""
    k: str = ""
    """pytest's -k expression."""
    gpu: bool = False
    explained: str = ""
    """Why no test can see it, where that is so. It counts as survived all the same."""

    @property
    def is_kernel(self) -> bool:
        """Whether the fault is in a kernel, CUDA or Triton, and not in Python around it."""
        return self.name.startswith(("cuda-", "triton-"))


def mutations(table: Path) -> list[Mutation]:
    """The rows of a table of mutations, in order. Raises ValueError where a row is malformed."""
    tables = tomllib.loads(table.read_text())
    found = []
    for name, row in tables["mutations"].items():
        try:
            selection = tables["tests"][row["seen_by"]]
            mutation = Mutation(
                name=name,
                tests=tuple(selection["files"]),
                k=selection.get("k", ""),
                gpu=selection.get("gpu", False),
                **row,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{table.name}: [mutations.{name}] {error}") from None
        if mutation.fault not in CLASSES:
            raise ValueError(
                f"{table.name}: [mutations.{name}] fault is {mutation.fault!r}, which is none of "
                + ", ".join(CLASSES)
            )
        if mutation.before == mutation.after:
            raise ValueError(f"{table.name}: [mutations.{name}] before and after are the same")
        found.append(mutation)
    return found


def tree_files(root: Path) -> list[str]:
    """The tree's files as git knows them, new ones included, ignored ones not."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [name for name in listed.split("\0") if name and (root / name).is_file()]


def path_of(name: str, files: list[str]) -> str:
    """The one file whose path ends with this name. Raises ValueError where it is not one."""
    found = [file for file in files if file == name or file.endswith("/" + name)]
    if len(found) != 1:
        which = ", ".join(found) or "no file"
        raise ValueError(f"{name} names {which}: give as much of its path as makes it one file")
    return found[0]


def stale(mutation: Mutation, files: list[str], root: Path) -> str:
    """Why a mutation no longer fits the tree, or nothing where it fits."""
    try:
        text = (root / path_of(mutation.file, files)).read_text()
        for test in mutation.tests:
            path, _, function = test.partition("::")
            tests = (root / path_of(path, files)).read_text()
            name = function.partition("[")[0]  # without the parameters
            if name and not re.search(rf"def {re.escape(name)}\b", tests):
                return f"{path} has no test {function}"
    except ValueError as error:
        return str(error)
    count = text.count(mutation.before)
    return "" if count == 1 else f"`before` stands {count} times in {mutation.file}, not once"
