"""Each exercise's starter fails with the idea, and its solution passes, within ten seconds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tcgemm.cli import app
from tcgemm.errors import TcgemmError, ToolchainError, UnknownNameError
from tcgemm.tools.exercise.catalogue import EXERCISES, find
from tcgemm.tools.exercise.command import failures
from tcgemm.tools.exercise.cuda import SHAPES
from tcgemm.tools.exercise.python import GRADERS

ROOT = Path(__file__).parent.parent
runner = CliRunner()
SAID = {
    "missing_barrier": "race", "tail": "out of bounds", "bank_conflicts": "bank conflicts",
    "grouped_order": "strips of A and B", "swizzle": "8 passes", "async_wait": "async copy",
    "coalescing": "sectors", "uncomputed_tiles": "never written", "race": "race",
    "ring_parity": "wrong", "k_tail": "33x40x33", "num_stages": "4 fit", "roofline": "should be",
    "accumulator": "summed to 2048", "waves": "takes",
}  # fmt: skip
"""Exercise -> what is said of its starter."""


# The first, the last, which test_exercise_mistakes.py leaves out, and one between.
@pytest.mark.spread(7, "number")
@pytest.mark.parametrize("number", [each.number for each in EXERCISES])
def test_the_starter_fails_and_names_the_idea(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exercise = EXERCISES[number - 1]
    assert runner.invoke(app, ["exercise", "start", str(number)]).exit_code == 0
    began = time.monotonic()
    done = runner.invoke(app, ["exercise", "check", str(number)])
    assert time.monotonic() - began < 60  # ten seconds on two idle cores
    assert done.exit_code == 1, done.output
    assert SAID[exercise.name] in done.output
    assert f"The idea: {exercise.idea}" in done.output
    assert exercise.page in done.output


# That one is compiled for a GPU as k_tail is, and test_exercise_mistakes.py makes a mistake in it.
@pytest.mark.parametrize("number", [
    pytest.param(each.number, marks=[pytest.mark.exhaustive] if each.name == "accumulator" else [])
    for each in EXERCISES
])  # fmt: skip
def test_the_solution_passes(number, tmp_path):
    exercise = find(str(number))
    path = tmp_path / exercise.file_name
    path.write_text(exercise.text("solution"))
    done = runner.invoke(app, ["exercise", "check", exercise.name, str(path)])
    assert done.exit_code == 0, done.output
    assert exercise.idea in done.output


def test_there_are_enough_in_both_languages():
    assert len(EXERCISES) >= 14
    assert [each.number for each in EXERCISES] == list(range(1, len(EXERCISES) + 1))
    languages = [each.language for each in EXERCISES]
    assert languages.count("CUDA") >= 7
    assert languages.count("Triton") >= 2
    assert set(SHAPES) | set(GRADERS) == {each.name for each in EXERCISES}


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_page_that_explains_exists_and_the_list_names_it(exercise):
    assert (ROOT / "docs" / exercise.page).exists()
    listed = (ROOT / "docs" / "exercises.md").read_text()
    assert re.search(rf"^\| {exercise.number} \| {exercise.language} \|", listed, re.M)
    assert f"Exercise {exercise.number}:" in exercise.text("starter")


def test_the_list_has_all():
    done = runner.invoke(app, ["exercise", "list"])
    assert done.exit_code == 0
    for exercise in EXERCISES:
        assert exercise.title in done.output


def test_start_never_overwrites(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "05_swizzle.py").write_text("mine")
    done = runner.invoke(app, ["exercise", "start", "swizzle"])
    assert isinstance(done.exception, TcgemmError)
    assert "exists" in str(done.exception)
    assert (tmp_path / "05_swizzle.py").read_text() == "mine"


def test_solution_prints_what_passes(capsys):
    done = runner.invoke(app, ["exercise", "solution", "5"])
    assert done.stdout == find("5").text("solution")


@pytest.mark.parametrize("name", ["0", "99", "no such exercise", ""])
def test_an_unknown_exercise_lists_those_that_exist(name):
    with pytest.raises(UnknownNameError, match="from 1 to 15"):
        find(name)


def test_a_missing_file_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = runner.invoke(app, ["exercise", "check", "3"])
    assert "tcgemm exercise start 3" in str(done.exception)


def test_what_does_not_compile_or_run_is_said(tmp_path):
    broken = tmp_path / "broken.cu"
    broken.write_text("this is no C++\n")
    with pytest.raises(ToolchainError):
        failures(find("race"), broken)
    for text, said in (("place = 1\n", "not callable"), ("def f(:\n", "SyntaxError")):
        path = tmp_path / "broken.py"
        path.write_text(text)
        assert any(said in line for line in failures(find("swizzle"), path))


@pytest.mark.parametrize("kind", ["half", "collides"])
def test_a_swizzle_that_is_half_right_does_not_pass(kind, tmp_path):
    path = tmp_path / "s.py"
    body = {"half": "unit ^ (row % 4)", "collides": "(unit + row) // 1 % 7"}[kind]
    path.write_text(f"def place(row, unit):\n    return {body}\n")
    assert failures(find("swizzle"), path)
