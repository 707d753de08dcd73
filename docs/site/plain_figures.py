"""Measured figures of pages that no query holds, so that nothing would notice a wrong digit.

    python docs/site/plain_figures.py [PAGE ...]

A figure is a number with a unit of what one measures, or with a decimal point. It need not be a
query where it says what else it is, by a word of ``OTHER`` (predicted, about, by arithmetic,
published ...): in its sentence or its cell of a table, at the beginning of its paragraph or of the
one before its table, in the head of its column, or in a comment: ``4.8<!-- arithmetic --> TB/s``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from contents import DOCS

UNIT = (
    r"(?:us|ns|µs|ms|TFLOPS|TOPS|[GT]B/s|%|W|MHz|registers|instructions|cycles|"
    r"bytes? (?:of )?spill\w*|spill\w*)(?![\w/])"
)
NUMBER = r"(?<![\w.,/^§-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w.]*\d|\w)"
FIGURE = re.compile(
    rf"{NUMBER}(?=(?:(?:,? (?:to|and|or|for|against|by|beside)|,) {NUMBER})*[ -]?{UNIT})"
    rf"|(?<![\w.,/^§-])\d+(?:,\d{{3}})*\.\d+(?![\w.]*\d|\w)"
)
OTHER = (
    r"\b(?:predict\w*|about|some|nearly|almost|roughly|arithmetic|published|peak|by the model|"
    r"specifi\w*|at most|at least|limit of|threshold|target|budget|not kept)\b"
)
BEGINS = r"(?:[-*] )?\**(?:predicted|by arithmetic|published|[^.]*arithmetic\.\*\*)"
SILENT = re.compile(
    r"```.*?```|<!-- (?:measured|code|nav).*?<!-- end -->|`[^`\n]*`|\]\([^)\n]*\)"
    r"|(?:CUDA|PTX|Triton|PyTorch|nvcc|torch|Python|NCCL|capability) v?\d+(?:\.\d+)+"
    r"|(?:under|over|above|below|least|most|than|within)\s\d[\d.]*"
    r"|-?[\d,]*\.?\d+ ?%?<!-- = .*? -->",
    re.S,
)
"""Code, what scripts/pages writes, versions, thresholds, figures that are queries."""
MARK = re.compile(rf" ?%?<!-- {OTHER} -->", re.I)


def says(text: str) -> bool:
    return bool(re.search(OTHER, re.sub("<!--.*?-->", "", text), re.I))


def parts(line: str) -> Iterator[tuple[int, str]]:
    """(place, text) of each sentence of a line, or cell of a table's row."""
    cut = r"(?= \| )" if line.startswith("|") else r"(?<=[.;!?]) (?=\S)"
    at = 0
    for part in re.split(cut, line):
        at = line.index(part, at)
        yield at, part
        at += len(part)


def plain(text: str) -> list[tuple[int, str]]:
    """(place, figure) of each plain figure of a page."""
    text = SILENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found: list[tuple[int, str]] = []
    head: list[str] = []
    start, excused, before = 0, False, ""
    for line in text.split("\n"):
        table = line.startswith("|")
        if not table:
            head, before = [], line or before
            excused = bool(line) and (excused or bool(re.match(BEGINS, line, re.I)))
        elif not head:
            head = line.split(" | ")
            excused = head[0] == "| level" or "not kept" in before
            excused = excused or bool(re.match(BEGINS, before, re.I))
        for i, (at, part) in enumerate(parts(line)):
            if excused or says(part) or (i < len(head) and says(head[i])):
                continue
            for figure in FIGURE.finditer(part):
                if not MARK.match(part, figure.end()):
                    found.append((start + at + figure.start(), figure[0]))
        start += len(line) + 1
    return found


def pages() -> list[Path]:
    return [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]


if __name__ == "__main__":
    asked = [Path(name) for name in sys.argv[1:]]
    for page in asked or pages():
        text = page.read_text()
        figures = plain(text)
        if not asked and figures:
            print(f"{len(figures):5} {page.relative_to(DOCS)}")
        for place, figure in figures if asked else ():
            line = text.count("\n", 0, place) + 1
            print(f"{page}:{line}: {figure} in {text[max(0, place - 40) : place + 40]!r}")
