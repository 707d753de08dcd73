"""The pictures of the course, as SVG text: drawn from constants of the code, never by hand."""

from __future__ import annotations

from pathlib import Path

from . import foundations, rungs, several, timeline

FOLDER = Path(__file__).parent.parent.parent / "pictures"


def drawn() -> dict[Path, str]:
    """File -> its text, for every picture of docs/pictures."""
    pictures = {**rungs.all(), **foundations.all(), **several.all()}
    pictures["timeline"] = timeline.timeline()
    return {FOLDER / f"{name}.svg": text for name, text in pictures.items()}
