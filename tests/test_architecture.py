"""The arrows of docs/design.md, read from the imports; what importing costs; the wheel."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, relative ones resolved."""
    relative = path.relative_to(ROOT)
    package = list(relative.parts[:-1])
    if package[0] in ("triton_kernels", "cuda_ref"):
        package = ["tcgemm", *package]
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def touches(names: set[str], *modules: str) -> set[str]:
    return {n for n in names if any(n == m or n.startswith(m + ".") for m in modules)}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files("triton_kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_triton_kernels_import_only_themselves(path):
    inner = touches(imported(path), "tcgemm") - touches(imported(path), "tcgemm.triton_kernels")
    assert not inner
    assert not touches(imported(path), "cuda_ref", "triton_kernels")


@pytest.mark.parametrize("path", files("cuda_ref"), ids=lambda p: str(p.relative_to(ROOT)))
def test_cuda_ref_imports_only_itself_and_no_triton(path):
    inner = touches(imported(path), "tcgemm") - touches(imported(path), "tcgemm.cuda_ref")
    assert not inner
    assert not touches(imported(path), "triton", "triton_kernels", "cuda_ref")


@pytest.mark.parametrize("path", files("tcgemm"), ids=lambda p: str(p.relative_to(ROOT)))
def test_tcgemm_names_no_kernel_folder_statically(path):
    assert not touches(
        imported(path), "tcgemm.triton_kernels", "tcgemm.cuda_ref", "triton_kernels", "cuda_ref"
    )


@pytest.mark.parametrize("path", files("tcgemm/report"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_report_imports_no_torch_and_no_kernel(path):
    forbidden = ("torch", "triton", "tcgemm.dispatch", "tcgemm.cublas", "tcgemm.bench.run")
    assert not touches(imported(path), *forbidden)


@pytest.mark.parametrize("path", files("tcgemm/tools"), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_tool_imports_no_other_tool(path):
    own = ".".join(path.relative_to(ROOT).with_suffix("").parts[:3])
    others = touches(imported(path), "tcgemm.tools") - {"tcgemm.tools"}
    assert not others - touches(others, own)


@pytest.mark.parametrize(
    "path",
    [p for p in files("tcgemm") if p.name != "cli.py" and ROOT / "tcgemm/tools" not in p.parents],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_nothing_but_the_command_line_imports_a_tool(path):
    assert not touches(imported(path), "tcgemm.tools")


def test_what_triton_rungs_share_names_none_of_them():
    names = {p.name.removesuffix("_plan.py") for p in files("triton_kernels") if "_plan" in p.name}
    assert len(names) >= 9
    shared = [p for p in files("triton_kernels") if p.parent.name not in ("rungs", "shapes")]
    assert len(shared) > 20
    for path in shared:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Constant) and node.value in names), (
                f"{path.relative_to(ROOT)} line {node.lineno} names {node.value}"
            )


@pytest.mark.parametrize("path", files("triton_kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_plans_and_rows_of_triton_rungs_import_no_compiler(path):
    if path.parent.name == "planning" or path.name.endswith("_plan.py"):
        assert not touches(imported(path), "triton", "tcgemm.triton_kernels.host.runtime")


def test_dispatch_knows_no_tile_size():
    assert "BLOCK" not in (ROOT / "tcgemm/dispatch.py").read_text()


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_tcgemm_loads_nothing_heavy():
    loaded = run_python("import sys, tcgemm; print([m for m in sys.modules if '.' not in m])")
    assert not {"torch", "triton", "pandas", "matplotlib"} & set(ast.literal_eval(loaded))


def test_matmul_on_the_baseline_loads_neither_triton_kernels_nor_pandas():
    code = (
        "import sys, torch, tcgemm; a = torch.ones(2, 2).half()\n"
        "before = set(sys.modules)\n"
        "tcgemm.matmul(a, a, backend='cublas')\n"
        "print([m for m in set(sys.modules) - before])"
    )
    loaded = set(ast.literal_eval(run_python(code)))
    assert not {m for m in loaded if m.split(".")[0] in ("triton", "pandas")}
    assert "tcgemm.triton_kernels" not in loaded
    assert not {m for m in loaded if m.startswith(("tcgemm.tools", "tcgemm.bench", "tcgemm.cli"))}


def test_listing_the_rows_imports_no_triton():
    code = (
        "import sys, tcgemm.triton_kernels as t, tcgemm.cuda_ref as c\n"
        "assert len(t.KERNELS) >= 5 and len(c.KERNELS) >= 6\n"
        "print('triton' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_help_needs_no_torch_and_answers_within_half_a_second():
    code = (
        "import sys\nsys.argv = ['tcgemm', '--help']\n"
        "from tcgemm.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    times = []  # on a processor, so that what else runs here does not count
    for _ in range(5):
        before = os.times()
        output = run_python(code)
        after = os.times()
        times.append(sum(after[2:4]) - sum(before[2:4]))  # of children, user and system
    assert "bench" in output
    assert "report" in output
    assert min(times) < 0.5


def test_the_bare_folder_names_are_refused():
    for name in ("triton_kernels", "cuda_ref"):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport {name}"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode != 0
        assert "ImportError" in result.stderr


def test_the_wheel_has_tcgemm_as_its_only_top_level_name(tmp_path):
    build = "from setuptools import build_meta; print(build_meta.build_wheel({!r}))"
    source = tmp_path / "source"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", source], check=True
    ) if (ROOT / ".git").exists() else pytest.skip("needs the git checkout")
    subprocess.run(
        [sys.executable, "-c", build.format(str(tmp_path))],
        check=True,
        cwd=source,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info" not in n} == {"tcgemm"}
    tracked = subprocess.run(
        ["git", "ls-files", "tcgemm", "triton_kernels", "cuda_ref"],
        check=True,
        cwd=source,
        capture_output=True,
        text=True,
    ).stdout.split()
    mapped = {p if p.startswith("tcgemm/") else f"tcgemm/{p}" for p in tracked}
    assert len(mapped) > 60
    assert mapped <= set(names), sorted(mapped - set(names))
    assert any(n.endswith("LICENSE") for n in names)
