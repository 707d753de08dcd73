"""Links and commands in the documents lead somewhere; no machine's paths are in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"\bmake ([a-z]+)", (ROOT / "README.md").read_text()))
    assert {"report", "test"} <= named
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
