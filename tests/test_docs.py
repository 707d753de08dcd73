"""Links and commands in the documents lead somewhere; no machine's paths are in them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer.main

from tcgemm import dispatch
from tcgemm.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page)):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def prose(page):
    """A page without its blocks of code: `[&](int i)` of C++ is no link."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def anchors(page):
    """As GitHub names the headings of a page."""
    seen = {}
    for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.M):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        yield slug if slug not in seen else f"{slug}-{seen[slug]}"
        seen[slug] = seen.get(slug, 0) + 1


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_headings_lead_somewhere(page):
    for path, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", prose(page)):
        target = (page.parent / path).resolve() if path else page
        if target in PAGES:  # reports are generated, and their headings with them
            assert anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


@pytest.mark.parametrize("folder", ["cuda", "triton"])
def test_every_rung_has_a_page_that_the_course_names(folder):
    course = (ROOT / "docs/README.md").read_text()
    for row in dispatch.ladder(folder):
        page = ROOT / f"docs/rungs/{folder}_{row.name}.md"
        assert page.exists(), f"{row.name} has no page: {page.relative_to(ROOT)}"
        assert f"(rungs/{page.name})" in course, f"docs/README.md does not name {page.name}"
        text = page.read_text()
        assert "```" in text, f"{page.name} has no diagram"
        assert "| level |" in text, f"{page.name} has no table of tiles"


def commands(page):
    """Each `tcgemm ...` of a page, in a line of prose or of a block, as a list of words."""
    text = page.read_text()
    found = re.findall(r"`(tcgemm [^`\n]+)`", text)
    found += re.findall(r"^(?:\$ )?(tcgemm .+)$", text, re.M)
    for line in found:
        yield shlex.split(re.split(r" (?:&&|>|\|) ", line)[0], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_have_the_options_that_they_name(page):
    group = typer.main.get_command(app)
    for _, name, *arguments in commands(page):
        if not re.fullmatch(r"[a-z][a-z-]*", name) or not arguments:
            continue
        try:
            group.commands[name].make_context(name, arguments)
        except Exception as error:  # typer has click's classes, or copies: by their names
            # Another is of a placeholder (MxNxK, N, my.cu), and one option alone is only named.
            wrong = ("NoSuchOption", "MissingParameter")[: len(arguments)]
            if type(error).__name__ in wrong:
                pytest.fail(f"{page.name}: tcgemm {name} {' '.join(arguments)}: {error}")


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert {"report", "test", "test-all"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_no_tracked_file_has_a_path_of_one_machine():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git checkout")
    found = subprocess.run(
        ["git", "grep", "-nIE", r"(^|[^A-Za-z0-9_.])/(work|home|root|opt)/[A-Za-z]", "--", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout
    lines = [line for line in found.splitlines() if not line.startswith("tests/test_docs.py")]
    assert not lines, "\n".join(lines)


WORDS = {
    r"\brounds of tiles|\brounds? of \d+ x|\b(?:full|last|single) round\b": "wave",
    r"\bregisters of sums\b": "accumulators",
    r"\b\d+ x \d+ in turns\b|\bno turns\b": "ping-pong",
    r"\bearly starts?\b": "programmatic dependent launch (PDL)",
    r"\basked ahead\b|\basks ahead\b|\basked for ahead\b": "L2 prefetch",
    r"\bC leaves\b|\bhow a tile leaves\b": "epilogue store, is stored",
    r"\b[Tt]he bar of \d|\(the bar:|\bthe mark\b(?! of)": "target",
    r"\bsettles at\b": "sustained clock",
    r"\bshared or turned\b": "transposed",
}
"""What a page must not say -> the field's word for it."""


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.parent != ROOT and "_build" not in p.parts],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_pages_use_the_field_s_words(page):
    for pattern, word in WORDS.items():
        found = re.search(pattern, prose(page))
        assert not found, f"{page.name} says {found[0]!r}: the field's word is {word}"
