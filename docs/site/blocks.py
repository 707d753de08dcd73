"""What is written into pages between two comments: code of the kernels, tables, the way onwards.

    <!-- code: cuda_ref/rungs/naive.cu | first line has this text | last line has this +1 -->
    <!-- measured: cuda/naive float16 512 4096 8192 -->
    <!-- nav -->
    ... written by scripts/pages ...
    <!-- end -->

So a page reads well on a Git host, and nothing on it is a copy that can grow old: ``renewed``
writes what the sources say today, and scripts/pages --check fails where a page says something else.
"""

from __future__ import annotations

import re
from pathlib import Path

import numbers_of
from contents import DOCS, RUNGS
from numbers_of import ROOT, QueryError

BLOCK = re.compile(
    r"<!-- (?P<kind>code|measured|nav)(?:: (?P<what>.*?))? -->\n(?P<body>.*?)<!-- end -->", re.S
)
OPENING = re.compile(r"<!-- (?:code: |measured: |nav -->)")
LONGEST_CODE = 32
"""Lines of code on a page: what matters, not the file."""
LAYOUTS = "../glossary.md#layout-nn-nt-tn-tt"
LANGUAGES = {".cu": "cuda", ".cuh": "cuda", ".py": "python", ".hpp": "cpp", ".cpp": "cpp"}


def code(what: str) -> str:
    """The lines of a file from the one that holds a text to the next that holds another.

    `` +2`` behind the second text takes two lines more.
    """
    path, first, last = (part.strip() for part in what.split(" | "))
    last, more = re.sub(r" \+\d+$", "", last), re.search(r" \+(\d+)$", last)
    if not (ROOT / path).is_file():
        raise QueryError(f"no file {path}")
    lines = (ROOT / path).read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if first in line]
    if len(starts) != 1:
        raise QueryError(f"{path}: {len(starts)} lines have {first!r}; one has to")
    ends = [i for i, line in enumerate(lines) if i >= starts[0] and last in line]
    if not ends:
        raise QueryError(f"{path}: no line from {first!r} on has {last!r}")
    chosen = lines[starts[0] : ends[0] + 1 + (int(more[1]) if more else 0)]
    if len(chosen) > LONGEST_CODE:
        raise QueryError(f"{path}: {len(chosen)} lines from {first!r}; {LONGEST_CODE} at most")
    plain = [line for line in chosen if not line.startswith("#pragma")]  # these stand at the margin
    margin = min(len(line) - len(line.lstrip()) for line in plain if line.strip())
    body = "\n".join(line if line.startswith("#pragma") else line[margin:] for line in chosen)
    return f"```{LANGUAGES[Path(path).suffix]}\n{body}\n```\n"


def share(ratio: float) -> str:
    """A ratio to two decimals, or to two digits where that would say next to nothing."""
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.2g}"


def measured(what: str) -> str:
    """A table of a kernel's rows: TFLOPS and share of cuBLAS, by size and layout."""
    kernel, dtype, *rest = what.split()
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    sizes = [word for word in rest if "=" not in word]
    layouts = (f"[{layout}]({LAYOUTS}), TFLOPS | of cuBLAS" for layout in ("nn", "nt"))
    head = f"| {dtype}, H200 | {' | '.join(layouts)} |\n"
    lines = []
    for size in sizes:
        cells = []
        for layout in ("nn", "nt"):
            row = numbers_of.result(kernel, dtype, layout, size, **options)
            if row is None:
                cells += ["no row", ""]
                continue
            tflops = numbers_of.column(row, "tflops")
            ratio = share(float(row["ratio_p50"])) if row["ratio_p50"] else ""
            cells += [f"{tflops:.{0 if tflops >= 100 else 1}f}", ratio]
        name = f"{size} cubed" if "x" not in size else size.replace("x", " x ")
        lines.append(f"| {name} | {' | '.join(cells)} |\n")
    return head + "|---|---|---|---|---|\n" + "".join(lines)


def nav(page: str) -> str:
    """Links to the page before, the course and the page after, in the order of the course."""
    same = [name for name in RUNGS if name.split("_")[0] == page.split("_")[0]]
    if page not in same:
        raise QueryError(f"docs/README.md does not name {page}.md, so it has no place")
    place = same.index(page)

    def link(name: str) -> str:
        return f"[{name.split('_', 1)[1]}]({Path(name).name}.md)"

    before = f"Before: {link(same[place - 1])}" if place else "The first rung"
    after = f"next: {link(same[place + 1])}" if place + 1 < len(same) else "the last page"
    return f"{before} · [the course](../README.md) · {after}\n"


def renewed(page: Path, text: str | None = None) -> str:
    """The text of a page, or of this one in its place, with all blocks and figures as the sources
    give them today.

    Raises QueryError, with the page, where a block or query leads nowhere.
    """
    text = page.read_text() if text is None else text
    name = page.relative_to(DOCS).with_suffix("").as_posix()

    def replace(found: re.Match[str]) -> str:
        kind, what = found["kind"], found["what"] or ""
        body = {"code": code, "measured": measured, "nav": lambda _: nav(name)}[kind](what)
        return f"<!-- {kind}{f': {what}' if what else ''} -->\n{body}<!-- end -->"

    try:
        if len(OPENING.findall(text)) != len(BLOCK.findall(text)):
            raise QueryError("a block that has no <!-- end -->")
        return numbers_of.renewed(BLOCK.sub(replace, text))
    except QueryError as error:
        raise QueryError(f"docs/{name}.md: {error}") from None
