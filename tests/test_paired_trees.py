"""scripts/paired_trees.py: which tree a process runs, what a pair becomes. Times need a GPU."""

from __future__ import annotations

import csv
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "paired_trees.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("paired_trees", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["paired_trees"] = module  # a dataclass asks for its module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["paired_trees"]


def test_each_process_runs_the_code_of_its_tree(tmp_path):
    """A tree whose products are twice what they should be is told from this one."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(ROOT / "pyproject.toml", other)
    for folder in ("tcgemm", "triton_kernels", "cuda_ref"):
        shutil.copytree(ROOT / folder, other / folder)
    call = other / "tcgemm" / "call.py"
    text = call.read_text()
    call.write_text(text + "\n_right = matmul\ndef matmul(*a, **k):\n"
                           "    c = _right(*a, **k)\n    c *= 2\n    return c\n")  # fmt: skip
    done = subprocess.run(
        [sys.executable, SCRIPT, other, "--check", "--backend", "triton", "--out", "pairs.csv"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = csv.DictReader((tmp_path / "pairs.csv").open())
    assert float(row["error_before"]) == pytest.approx(1, abs=0.01)
    assert float(row["error_now"]) < 0.01


def test_a_row_holds_the_pairs_of_a_case(script, monkeypatch, capsys):
    def answer(process, **asked):
        if "case" in asked:
            return {"error": 1e-3, "among": ["alone", "graph"] if process == "now" else ["alone"]}
        return {"us": 10.0 if process == "before" else 8.0}

    monkeypatch.setattr(script, "ask", answer)
    case = script.Case("cuda", 1, 2, 3)
    (row,) = script.rows_of(case, "before", "now", True)
    assert set(row) <= set(script.FIELDS)
    assert (row["among"], row["us_before"], row["us_now"]) == ("alone", "10.000", "8.000")
    assert row["ratio_p50"] == "1.2500"
    monkeypatch.setattr(script, "ask", lambda process, **asked: {"failed": "no room"})
    assert list(script.rows_of(case, "before", "now", True)) == []
    assert "no room" in capsys.readouterr().err


def test_a_case_is_drawn_once(script):
    every = [case for backend in ("cuda", "triton") for case in script.cases(backend)]
    assert len(every) == len(set(every)) > 60
