"""The whole report: folders in, files out. A pure function of the folders' files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..bench.several.cases import SEVERAL
from ..bench.store import RESULTS
from ..errors import ResultsError
from ..files import write_whole
from . import several
from .answer import answer
from .counts import SLUG, draw_counts
from .figures import SLUGS, Picture, draw_all, draw_answer, draw_ladder, draw_published
from .folder import Folder, load
from .markdown import BEGIN, END, folder_readme, project_section, rewritten
from .page import page
from .several import Several

REPORTS = Path("reports")
"""Where folders are looked for when none is named."""


def write(
    paths: Sequence[Path], out: Path | None = None, readme: Path | None = None
) -> dict[str, list[Path]]:
    """Write every page and figure.

    Args:
        paths: results folders; empty takes every folder below ``reports/`` that has results.
        out: folder (or .html file) of the page over all folders; by default, where there are
            several, the folder that holds them all.
        readme: Markdown file with the two markers, rewritten for every GPU folder; by default
            ``README.md`` here if it has them, and only for folders below here: results from
            elsewhere never end up in a project's own table unasked.

    Returns:
        ``"pages"``: the HTML pages, the most inclusive last; ``"changed"``: every file whose
        content changed.

    Raises ResultsError where a folder cannot be used or a file not written.
    """
    paths = list(dict.fromkeys(Path(p) for p in paths)) or _found()
    over_several = [several.load(p) for p in paths if several.holds(p)]
    single = [p for p in paths if not several.holds(p) or (p / RESULTS).is_file()]
    folders = sorted((load(p) for p in single), key=lambda f: not f.on_gpu)
    folders = _told_apart(folders)
    changed: list[Path] = []
    pages: list[Path] = []
    drawn: list[tuple[Folder, Sequence[Picture]]] = []
    try:
        for folder in folders:
            pictures = draw_all(folder.name, folder.table, folder.gpu)
            if folder.counts:
                pictures = [*pictures, draw_counts(folder.counts)]
            drawn.append((folder, pictures))
            _figures(folder.path / "figures", pictures, changed)
            _write(folder.path / "README.md", folder_readme(folder, pictures), changed)
            _write(folder.path / "index.html", page([(folder, pictures)]), changed)
            pages.append(folder.path / "index.html")
        drawn_several = [_several(folder, changed, pages) for folder in over_several]
        every = [*(f.path for f in folders), *(f.path for f in over_several)]
        if out is None and len(set(every)) > 1:
            out = Path(os.path.commonpath([path.resolve().parent for path in every]))
        if out is not None:
            target = out if out.suffix == ".html" else out / "index.html"
            if target.resolve() not in [p.resolve() for p in pages]:
                _write(target, page(drawn, _shared(folders), drawn_several), changed)
                pages.append(target)
        _readme(folders, readme, changed)
    except OSError as error:
        raise ResultsError(
            f"cannot write {error.filename}: {error.strerror}; check its permissions and the room "
            "on its disk, or give another folder with --out"
        ) from None
    return {"pages": pages, "changed": changed}


def _several(
    folder: Several, changed: list[Path], pages: list[Path]
) -> tuple[Several, Sequence[Picture]]:
    """The files of a folder of products over several GPUs, and its pictures. Where it has results
    of one GPU as well, these have the folder's own page."""
    pictures = several.pictures(folder)
    _figures(folder.path / "figures", pictures, changed, several.SLUGS)
    if not (folder.path / RESULTS).is_file():
        _write(folder.path / "README.md", several.folder_readme(folder, pictures), changed)
        _write(folder.path / "index.html", page([], (), [(folder, pictures)]), changed)
        pages.append(folder.path / "index.html")
    return folder, pictures


def _told_apart(folders: list[Folder]) -> list[Folder]:
    """Several runs of one GPU by the names of their folders, or their numbers."""
    slugs = [folder.slug for folder in folders]
    paths = [folder.path.resolve().name for folder in folders]
    told = []
    for number, (folder, name) in enumerate(zip(folders, paths, strict=True), start=1):
        if slugs.count(folder.slug) > 1:
            name = name if paths.count(name) == 1 else f"{name} ({number})"
            slug = f"{folder.slug}-{number}"
            folder = replace(folder, name=f"{folder.name}, {name}", slug=slug)
        told.append(folder)
    return told


def _found() -> list[Path]:
    names = (RESULTS, SEVERAL)
    paths = sorted({p.parent for name in names for p in REPORTS.glob(f"*/{name}")})
    if not paths:
        raise ResultsError(
            f"no results below {REPORTS.resolve()}: run 'tcgemm bench' first, or name a folder "
            "that holds a results.csv"
        )
    return paths


def _shared(folders: Sequence[Folder]) -> list[Picture]:
    timed = [(f.name, f.plain) for f in folders if f.on_gpu and f.plain["tflops"].notna().any()]
    if len(timed) < 2:
        return []
    answers = [answer(name, table) for name, table in timed]
    return [draw_answer(answers, rows=False), draw_ladder(timed), draw_published(timed)]


def _figures(
    folder: Path,
    pictures: Sequence[Picture],
    changed: list[Path],
    slugs: Sequence[str] = (*SLUGS, SLUG),
) -> None:
    svgs = {p.slug: p.svg for p in pictures}
    for slug in slugs:
        path, svg = folder / f"{slug}.svg", svgs.get(slug)
        if svg is not None:
            _write(path, svg, changed)
        elif path.exists():
            path.unlink()
            changed.append(path)


def _readme(folders: Sequence[Folder], readme: Path | None, changed: list[Path]) -> None:
    path = readme or Path("README.md")
    if not path.is_file():
        if readme is not None:
            raise ResultsError(f"no file {readme}: --readme names a Markdown file with markers")
        return
    if readme is None:
        here = path.resolve().parent
        folders = [f for f in folders if f.path.resolve().is_relative_to(here)]
    section = project_section(folders, path.resolve())
    if section is None:
        return
    text = rewritten(path.read_text(encoding="utf-8"), section)
    if text is not None:
        _write(path, text, changed)
    elif readme is not None:
        raise ResultsError(
            f"{readme} lacks the lines {BEGIN} and {END}, between which its table goes"
        )


def _write(path: Path, text: str, changed: list[Path]) -> None:
    """Write ``text``, whole or not at all, where it differs from what is there."""
    if path.is_file() and path.read_bytes() == text.encode():
        return
    write_whole(path, text)
    changed.append(path)
