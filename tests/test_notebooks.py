"""The notebooks of the course: all of them run, on a CPU, in a few minutes together."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "notebooks"
sys.path.insert(0, str(ROOT / "docs" / "site"))

import contents  # noqa: E402

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SCRIPT = ROOT / "scripts" / "notebooks"


def test_there_are_six_and_each_has_its_place():
    assert {path.stem for path in NOTEBOOKS} == set(contents.NOTEBOOKS)
    assert len(NOTEBOOKS) == 6
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert all(f"(notebooks/{name}.ipynb)" in page for name in contents.NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_keeps_what_it_shows_and_no_error(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert cells[0]["source"][0].startswith("# ")
    assert all(cell["execution_count"] for cell in code), "run scripts/notebooks"
    kinds = [one["output_type"] for cell in code for one in cell["outputs"]]
    assert len(kinds) >= 3
    assert "error" not in kinds
    assert "Try it" in "".join(cells[-1]["source"])
    assert path.stat().st_size < 120_000


def notebooks(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_an_unknown_notebook_is_said():
    pytest.importorskip("nbclient", reason="pip install -e '.[docs]'")
    done = notebooks("--check", "nothing")
    assert done.returncode == 2
    assert "no such notebook: nothing.ipynb" in done.stderr


@pytest.mark.exhaustive
def test_all_run_in_six_minutes():
    pytest.importorskip("nbclient", reason="pip install -e '.[docs]'")
    before = {path: path.read_text() for path in NOTEBOOKS}
    began = time.monotonic()
    done = notebooks("--check")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 360
    assert {path: path.read_text() for path in NOTEBOOKS} == before


@pytest.mark.exhaustive
def test_a_cell_that_raises_is_a_failure():
    nbformat = pytest.importorskip("nbformat", reason="pip install -e '.[docs]'")
    broken = FOLDER / "broken_by_a_test.ipynb"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    try:
        nbformat.write(book, broken)
        done = notebooks("--check", "broken_by_a_test")
    finally:
        broken.unlink(missing_ok=True)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
