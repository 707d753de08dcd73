"""``tcgemm show-kernel --side-by-side``: source, PTX and SASS beside each other, as one page.

A line that the mouse is over lights up with all that it became, or came from; a click keeps it and
scrolls the others there. The page needs no network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from ...errors import ResultsError
from .lines import Lines, Listing


def page(shown: Sequence[Listing]) -> str:
    """HTML of one kernel, or of two: their sources, and the PTX and SASS of one at a time."""
    title = " beside ".join(each.kernel for each in shown)
    panes = [
        _pane(f"{each.kernel} · {each.file}", "source", number) for number, each in enumerate(shown)
    ]
    panes += [_pane("PTX", "ptx", 0), _pane("SASS", "sass", 0)]
    data = [
        {
            "kernel": each.kernel,
            "made": each.made,
            "source": [[text, number] for number, text in enumerate(each.source, 1)],
            "ptx": _plain(each.ptx),
            "sass": _plain(each.sass),
        }
        for each in shown
    ]
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    template = (files(__package__) / "side_by_side.html").read_text()
    return (
        template.replace("{{title}}", escape(title))
        .replace("{{panes}}", "\n".join(panes))
        .replace("{{data}}", text)
    )


def _plain(lines: Lines) -> list[list[str | int]]:
    return [[text, at] for text, at in lines]


def _pane(title: str, kind: str, of: int) -> str:
    return (
        f'<section data-kind="{kind}" data-of="{of}"><h2>{escape(title)}</h2>'
        f'<div class="code" tabindex="0" aria-label="{escape(title)}"></div></section>'
    )


def write_page(path: Path, shown: Sequence[Listing]) -> None:
    """Raises ResultsError where that cannot be."""
    try:
        path.write_text(page(shown))
    except OSError as error:
        raise ResultsError(
            f"cannot write {path}: {error.strerror}; --side-by-side names another place"
        ) from None
