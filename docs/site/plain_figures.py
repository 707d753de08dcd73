"""Measured figures of pages that no query holds, so that nothing would notice a wrong digit.

    python docs/site/plain_figures.py [PAGE ...]

A figure is a number with a unit of what one measures, or with a decimal point. It need not be a
query where it says what else it is: in a sentence with a word of ``OTHER`` (predicted, about, by
arithmetic, published ...), in a paragraph that begins with such a word in bold, in a column of a
table whose head has one, or with a comment behind it that has one: ``4.8<!-- arithmetic --> TB/s``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from contents import DOCS

UNIT = (
    r"(?:us|ns|µs|ms|TFLOPS|TOPS|[GT]B/s|%|W|MHz|registers|instructions|cycles|"
    r"bytes? (?:of )?spill\w*|spill\w*)(?![\w/])"
)
NUMBER = r"(?<![\w.,/^§-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w.]*\d|\w)"
FIGURE = re.compile(
    rf"{NUMBER}(?=(?:(?:,? (?:to|and|or|for|against|by|beside)|,) {NUMBER})*[ -]?{UNIT})"
    rf"|(?<![\w.,/^§-])\d+(?:,\d{3})*\.\d+(?![\w.]*\d|\w)"
)
OTHER = re.compile(
    r"\b(?:predict\w*|expect\w*|about|some|nearly|almost|roughly|arithmetic|published|peaks?|"
    r"specifi\w*|by the model|at most|at least|limits?|threshold|target|would|could)\b",
    re.I,
)
SILENT = re.compile(
    r"```.*?```|<!-- (?:measured|code|nav).*?<!-- end -->|`[^`\n]*`|\]\([^)\n]*\)"
    r"|(?:[Cc]ompute capability|CUDA|PTX|Triton|PyTorch|nvcc|torch|Python|ptxas|NCCL)"
    r" v?\d+(?:\.\d+)+|(?:under|over|above|below|least|most|than|within)\s\d[\d.]*|-?[\d,]*\.?\d+ ?%?<!-- = .*? -->",
    re.S,
)
"""Code, what scripts/pages writes, versions, figures that are queries."""
MARK = re.compile(rf" ?%?<!-- (?:{OTHER.pattern}) -->", re.I)


def blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def sentences(line: str):
    """(place, text) of each sentence of a line, or cell of a table's row."""
    cut = r"(?= \| )" if line.startswith("|") else r"(?<=[.;!?]) (?=\S)"
    at = 0
    for part in re.split(cut, line):
        yield line.find(part, at), part
        at = line.find(part, at) + len(part)


def plain(text: str) -> list[tuple[int, str]]:
    """(place, figure) of each plain figure of a page."""
    text = SILENT.sub(blank, text)
    found, start, head, excused, caption = [], 0, [], False, ""
    for line in text.split("\n"):
        if not line.startswith("|"):
            head, caption = [], line or caption
            if not line.strip():
                excused = False
            bold = re.match(r"(?:[-*] )?\*\*(.*?)\*\*", line)
            excused = excused or bool(bold and OTHER.search(bold[1]))
        elif not head:
            head = line.split(" | ")
        if line.startswith("|") and re.match(rf"\**{OTHER.pattern}", caption, re.I):
            start += len(line) + 1
            continue
        for i, (at, part) in enumerate(sentences(line)):
            column = head[i] if i < len(head) else ""
            if excused or OTHER.search(column) or OTHER.search(re.sub("<!--.*?-->", "", part)):
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
            print(f"{page}:{line}: {figure}  ...{text[max(0, place - 40) : place + 40]!r}")
