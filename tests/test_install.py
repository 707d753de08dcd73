"""What is installed: the wheel, with torch and Triton alone, and what names a missing extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tcgemm import extras
from tcgemm.errors import MissingExtraError, TcgemmError
from tcgemm.tools import doctor

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(each).name) for each in requirements}


def test_the_library_alone_needs_torch_and_triton():
    assert names_of(PROJECT["dependencies"]) == {"torch", "triton"}


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_an_extra_brings_what_it_is_said_to_bring(extra):
    packages = {extras.PACKAGES.get(name, name) for name in extras.EXTRAS[extra]}
    assert packages == names_of(PROJECT["optional-dependencies"][extra])


def test_all_is_all_extras_of_a_user():
    every = PROJECT["optional-dependencies"]
    (all_,) = (Requirement(each) for each in every["all"])
    assert all_.extras == set(every) - {"all", "dev"}
    assert set(extras.EXTRAS) < all_.extras


def test_an_extra_that_is_here_is_not_asked_for():
    for extra in extras.EXTRAS:
        extras.need(extra, "this test")


def test_a_missing_package_is_named_with_its_install_line(monkeypatch):
    monkeypatch.setitem(extras.EXTRAS, "report", ("rich", "no_such_module", "pynvml2"))
    monkeypatch.setitem(extras.PACKAGES, "pynvml2", "nvidia-ml-py2")
    with pytest.raises(MissingExtraError) as error:
        extras.need("report", "tcgemm.kernels()")
    assert str(error.value) == (
        "tcgemm.kernels() needs no_such_module and nvidia-ml-py2, which are not installed: "
        "pip install 'tcgemm[report]'"
    )
    assert isinstance(error.value, TcgemmError)
    assert isinstance(error.value, ImportError)


def test_a_failed_import_is_explained_where_an_extra_brings_the_module():
    with pytest.raises(MissingExtraError, match=r"needs numpy, .* 'tcgemm\[cpu\]'"):
        extras.explain(ImportError("no", name="numpy.core"), "triton/naive")
    extras.explain(ImportError("no", name="somebody.elses"), "triton/naive")
    extras.explain(ImportError("no"), "triton/naive")


def test_doctor_names_the_extras_that_are_left_out(monkeypatch):
    assert (doctor._extras().state, doctor._extras().found) == ("ok", "cli, cpu, report")
    monkeypatch.setitem(extras.EXTRAS, "cpu", ("no_such_module", "nor_this"))
    monkeypatch.setitem(extras.EXTRAS, "report", ("pandas", "no_such_module"))
    check = doctor._extras()
    assert check.state == "limited"
    assert check.found == (
        "cli; not cpu (lacks no_such_module and nor_this), report (lacks no_such_module)"
    )
    assert check.cure == "pip install 'tcgemm[cpu,report]'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from what git tracks, as it is in the working tree."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git checkout")
    source = tmp_path_factory.mktemp("source")
    for name in tracked("."):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    done = subprocess.run(
        [sys.executable, "-c", build], check=True, cwd=source, capture_output=True, text=True
    )
    assert "would be ignored" not in done.stderr
    assert "Warning" not in done.stderr, done.stderr
    (built,) = (source / "dist").glob("*.whl")
    return built


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", *folders]
    return subprocess.run(
        command, check=True, cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()


def test_the_wheel_has_tcgemm_as_its_only_top_level_name_and_all_of_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tcgemm"}
    files = [name for name in tracked("tcgemm", "triton_kernels", "cuda_ref")
             if (ROOT / name).exists()]  # fmt: skip
    mapped = {name if name.startswith("tcgemm/") else f"tcgemm/{name}" for name in files}
    assert len(mapped) > 60
    assert mapped <= set(names), sorted(mapped - set(names))
    assert any(name.endswith("LICENSE") for name in names)


def test_the_wheel_carries_the_measured_rows_and_nothing_else_of_the_reports(wheel):
    reports = tracked("reports/*/results.csv", "reports/*/environment.json")
    assert reports
    carried = {name for name in zipfile.ZipFile(wheel).namelist() if "/reports/" in name}
    assert carried == {f"tcgemm/{name}" for name in reports}


def closure(*names: str) -> set[str]:
    """The distributions that these need, themselves among them."""
    found: set[str] = set()
    asked = [*names]
    while asked:
        name = canonicalize_name(asked.pop())
        if name in found:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        wanted = (Requirement(each) for each in requirements)
        asked += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def link(site: Path, *names: str) -> None:
    """Links in ``site`` to all that these distributions and what they need have installed."""
    for name in closure(*names):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()}:
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


class Thin:
    """A fresh environment that sees the wheel and the distributions that were linked into it."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.site = folder, folder / "site"
        self.site.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        (packages,) = (folder / "venv/lib").glob("python*/site-packages")
        (packages / "thin.pth").write_text(str(self.site))
        link(self.site, "torch", "triton")
        command = ["--python", folder / "venv/bin/python", "install", "--no-deps", "--no-index"]
        subprocess.run([sys.executable, "-m", "pip", "--quiet", *command, wheel], check=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment, outside of any checkout."""
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "COLUMNS")}
        return subprocess.run(
            [self.folder / "venv/bin" / command[0], *command[1:]],
            cwd=self.folder, env=clean, capture_output=True, text=True,
        )  # fmt: skip

    def python(self, code: str) -> str:
        done = self.run("python", "-c", code)
        assert done.returncode == 0, done.stderr
        return done.stdout


REFUSED = """
import tcgemm, torch
from importlib.util import find_spec
for name in ("numpy", "pandas", "matplotlib", "seaborn", "typer", "rich", "pynvml", "ninja"):
    assert find_spec(name) is None, name
a = torch.randint(-4, 5, (33, 64)).half()
b = torch.randint(-4, 5, (64, 48)).half()
for backend in ("cublas", "cuda"):
    assert torch.equal(tcgemm.matmul(a, b, backend=backend).float(), a.float() @ b.float())
assert tcgemm.nn.Linear(64, 8, backend="cublas").half()(a).isfinite().all()
for call in (tcgemm.kernels, lambda: tcgemm.matmul(a, b, backend="triton")):
    try:
        call()
    except tcgemm.TcgemmError as error:
        print(error)
"""

NEED_EXTRAS = re.compile(
    r"tcgemm\.(report|cli\.\w+|commands|options|tools\.(new_kernel|verify))\b|.*\.(command|printed)$"
)

IMPORTS = """
import importlib, os, pkgutil, tcgemm
os.environ["TRITON_INTERPRET"] = "0"  # as on a machine with a GPU
for module in pkgutil.walk_packages(tcgemm.__path__, "tcgemm.", onerror=lambda name: None):
    try:
        if module.name != "tcgemm.__main__":
            importlib.import_module(module.name)
    except ImportError:
        print(module.name)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the CUDA kernels on a CPU")
def test_a_fresh_environment_with_torch_and_triton_alone_and_then_with_extras(tmp_path, wheel):
    thin = Thin(tmp_path, wheel)
    kernels, product = thin.python(REFUSED).splitlines()
    assert kernels.endswith("pip install 'tcgemm[report]'")
    assert product.endswith("needs numpy, which is not installed: pip install 'tcgemm[cpu]'")
    unimportable = thin.python(IMPORTS).split()
    assert unimportable
    assert [name for name in unimportable if not NEED_EXTRAS.match(name)] == []
    for command in (("tcgemm", "--help"), ("python", "-m", "tcgemm", "bench")):
        done = thin.run(*command)
        assert done.returncode == 2
        assert done.stderr.strip() == (
            "tcgemm: the command line needs typer, rich and nvidia-ml-py, which are not installed: "
            "pip install 'tcgemm[cli]'"
        )

    link(thin.site, "numpy")
    thin.python(first_block())

    link(thin.site, "typer", "rich", "nvidia-ml-py")
    assert "bench" in thin.run("tcgemm", "--help").stdout
    explained = thin.run("tcgemm", "explain", "4096x4096x4096", "--gpu", "h200", "--json")
    assert '"exact": true' in explained.stdout, explained.stderr
    done = thin.run("tcgemm", "report")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "tcgemm: tcgemm report needs pandas, matplotlib and seaborn, which are not installed: "
        "pip install 'tcgemm[report]'"
    )


def first_block() -> str:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)[0]
