"""scripts/mutate and its table of faults, and that it tells a killed fault from a survivor."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
loader = SourceFileLoader("mutate", str(ROOT / "scripts" / "mutate"))
mutate = module_from_spec(spec_from_loader("mutate", loader))
sys.modules["mutate"] = mutate  # where dataclasses look up their annotations
loader.exec_module(mutate)

import mutations  # noqa: E402 (it lies beside the script)

TABLE = mutations.mutations(ROOT / "scripts" / "mutations.toml")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files of the tree are git's to list")
def test_every_mutation_fits_the_tree():
    """Where a change of the code took the text of a mutation away, write the mutation anew."""
    files = mutations.tree_files(ROOT)
    assert not [f"{m.name}: {why}" for m in TABLE if (why := mutations.stale(m, files, ROOT))]


def test_the_table_covers_kernels_and_python_and_every_class_of_faults():
    kernels = sum(mutation.is_kernel for mutation in TABLE)
    assert len(TABLE) >= 80
    assert 0.4 <= kernels / len(TABLE) <= 0.65
    assert {mutation.fault for mutation in TABLE} == set(mutations.CLASSES)


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (0, "3 passed in 1s", ("survived", "")),
        (1, "FAILED tests/a.py::test_b[c d] - assert 1", ("killed", "tests/a.py::test_b[c d]")),
        (2, "ERROR tests/test_a.py - NameError: x\n1 error", ("killed", "tests/test_a.py")),
        (-11, "", ("killed", "Python ended by signal 11")),
        (None, "", ("timed out", "")),
        (4, "ERROR: no such file", ("error", "pytest ended with 4: ERROR: no such file")),
        (5, "3 deselected", ("error", "pytest ended with 5: 3 deselected")),
    ],
    ids=str,
)  # fmt: skip
def test_a_run_of_pytest_has_a_verdict(status, output, expected):
    assert mutate.verdict(status, output) == expected


PROJECT = {
    "pyproject.toml": (
        '[tool.setuptools]\npackages = ["tcgemm", "tcgemm.cuda_ref", "tcgemm.triton_kernels"]\n'
        'package-dir = { "tcgemm.cuda_ref" = "cuda_ref", "tcgemm.triton_kernels" = "kernels" }\n'
    ),
    "tcgemm/__init__.py": "def double(x):\n    return x + x\n",
    "cuda_ref/__init__.py": "import time\n\ndef wait():\n    time.sleep(0)\n",
    "kernels/__init__.py": "",
    "tests/test_it.py": (
        "import tcgemm\nfrom tcgemm import cuda_ref\n"
        "def test_double():\n    assert tcgemm.double(2) == 4\n"
        "def test_wait():\n    cuda_ref.wait()\n"
        "def test_wrong():\n    assert tcgemm.double(1) == 3\n"
    ),
    "scripts/mutations.toml": (
        '[tests.right]\nfiles = ["test_it.py"]\nk = "double or wait"\n'
        '[tests.wrong]\nfiles = ["test_it.py"]\nk = "wrong"\n'
    ),
}
ROWS = {
    "seen": ("tcgemm/__init__.py", "x + x", "x + 3", "right"),
    "unseen": ("tcgemm/__init__.py", "x + x", "x * x", "right"),
    "endless": ("cuda_ref/__init__.py", "time.sleep(0)", "time.sleep(60)", "right"),
    "untested": ("tcgemm/__init__.py", "x + x", "x - x", "wrong"),
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of three modules with the mutations of ROWS, in which the script runs."""
    root = tmp_path / "project"
    for name, text in PROJECT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    with (root / "scripts" / "mutations.toml").open("a") as table:
        for name, (file, before, after, tests) in ROWS.items():
            values = {"file": file, "before": before, "after": after, "seen_by": tests}
            values |= {"fault": mutations.CLASSES[0], "what": f"it is {name}"}
            lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
            table.write("\n".join([f"[mutations.{name}]", *lines, ""]))
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return root


def test_faults_are_killed_or_survive_and_the_tree_stays_as_it_is(project, capsys, tmp_path):
    before = {path: path.read_text() for path in project.rglob("*.py")}
    results = tmp_path / "results.json"
    assert mutate.main(["--only", "seen", "--jobs", "1", "--json", str(results)], project) == 1
    written = json.loads(results.read_text())
    status = {row["name"]: row["status"] for row in written["mutations"]}
    assert status == {"seen": "killed", "unseen": "survived"}
    assert written["share"] == 0.5
    assert "tests/test_it.py::test_double" in capsys.readouterr().out
    assert {path: path.read_text() for path in project.rglob("*.py")} == before


def test_tests_that_do_not_end_are_ended_with_what_they_started(project, tmp_path):
    slot = mutate.Slot(tmp_path / "slot", project, mutations.tree_files(project))
    table = mutations.mutations(project / "scripts" / "mutations.toml")
    mutation = next(m for m in table if m.name == "endless")
    with slot.mutated(mutation), slot.linked_cache() as cache:
        assert slot.test(mutation, cache, 2, False) == (None, "")
    assert not mutate._running
    assert (slot.tree / "cuda_ref/__init__.py").read_text() == PROJECT["cuda_ref/__init__.py"]


def test_tests_that_fail_without_a_fault_are_an_error_and_kill_nothing(project, capsys):
    assert mutate.main(["--only", "untested", "--jobs", "1"], project) == 1
    said = capsys.readouterr().out
    assert "unmutated, its tests end with status 1" in said
    assert "killed" not in said.splitlines()[0]


def test_a_mutation_that_no_longer_fits_is_named_and_nothing_runs(project, capsys):
    (project / "tcgemm" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    assert mutate.main([], project) == 2
    said = capsys.readouterr().err
    assert "seen: `before` stands 0 times in tcgemm/__init__.py, not once" in said
    assert "endless" not in said
