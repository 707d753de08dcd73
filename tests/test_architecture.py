"""The arrows of docs/design.md, read from the imports; what importing costs."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


FOLDERS = ("tcgemm", "triton_kernels", "cuda_ref")


class RunTime(ast.NodeTransformer):
    """Leaves out what only a type checker reads."""

    def visit_If(self, node: ast.If) -> ast.AST:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return ast.If(ast.Constant(True), [ast.Pass()], node.orelse)
        return self.generic_visit(node)


@cache
def imports_of(path: Path, for_types: bool = True) -> tuple[tuple[str, str], ...]:
    """(absolute name of a module, the name that is imported from it or ""), late or early.

    What only a type checker reads counts where ``for_types``.
    """
    tree: ast.AST = ast.parse(path.read_text())
    if not for_types:
        tree = RunTime().visit(tree)
    found: list[tuple[str, str]] = []
    package = list(path.relative_to(ROOT).parts[:-1])
    if package[0] in ("triton_kernels", "cuda_ref"):
        package = ["tcgemm", *package]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(module, alias.name) for alias in node.names]
    return tuple(found)


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, relative ones resolved."""
    found = imports_of(path)
    return {module for module, _ in found} | {f"{module}.{name}" for module, name in found if name}


def module_of(path: Path) -> str:
    """The name that a file of the three packages is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "tcgemm" else ("tcgemm", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(for_types: bool) -> dict[str, set[str]]:
    """Module of the three packages -> those of them that it imports, late or early.

    What only a type checker reads counts where ``for_types``.
    """
    paths = {module_of(path): path for folder in FOLDERS for path in files(folder)}
    graph = {}
    for module, path in paths.items():
        named = (
            f"{source}.{name}" if f"{source}.{name}" in paths else source
            for source, name in imports_of(path, for_types)
        )
        graph[module] = {name for name in named if name in paths and name != module}
    return graph


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Names of which each leads to the next, and the last is the first; [] where there is none."""
    done: set[str] = set()

    def from_(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        found = next(filter(None, (from_(n, [*way, node]) for n in sorted(graph[node]))), [])
        done.add(node)
        return found

    return next(filter(None, (from_(node, []) for node in sorted(graph))), [])


def floor_of(module: str) -> int:
    """0: the library, that a call goes through; 1: the measurement; 2: a tool; 3: above them."""
    if touches({module}, "tcgemm.cli", "tcgemm.__main__"):
        return 3
    if touches({module}, "tcgemm.tools"):
        return 2
    return int(bool(touches({module}, "tcgemm.bench", "tcgemm.report", "tcgemm.verify")))


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


def test_no_module_imports_itself_by_way_of_others():
    graph = import_graph(for_types=False)
    assert len(graph) > 150
    assert circle(graph) == []


def test_a_circle_is_found():
    graph = {"a": {"b", "c"}, "b": set(), "c": {"d"}, "d": {"b", "c"}}
    assert circle(graph) == ["c", "d", "c"]
    assert circle({**graph, "d": {"b"}}) == []


def test_arrows_run_from_tools_to_the_measurement_to_the_library():
    graph = import_graph(for_types=True)
    assert {floor_of(module) for module in graph} == {0, 1, 2, 3}
    against = {(m, n) for m in graph for n in graph[m] if floor_of(n) > floor_of(m)}
    assert not against


def test_only_the_package_root_and_the_command_line_know_tools_by_name():
    """The root installs the one that a call may ask for, and loads it when it is asked for."""
    knowing = set()
    for path in files("tcgemm"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.match(r"(tcgemm)?\.tools\b", text):
                knowing.add(module_of(path))
    assert knowing == {"tcgemm", "tcgemm.cli.application"}


def block_from(text: str, start: int) -> str:
    """From ``start`` to the end of the statement or block that begins there."""
    depth = 0
    for end in range(start, len(text)):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(text[end], 0)
        if depth == 0 and text[end] in "};":
            return text[start : end + 1]
    return text[start:]


def called(code: str) -> set[str]:
    """Names that are followed by arguments, of functions and of templates of them."""
    flat = re.sub(r"//.*", "", code)
    while (less := re.sub(r"<[^<>;{}=]*>", "", flat)) != flat:  # template arguments
        flat = less
    return set(re.findall(r"(\w+)\(", flat))


def headers_of_main_loop(rung: Path) -> set[str]:
    """The files of ours whose functions a rung's loops over K call, lambdas looked into.

    Constants are not counted: a build's tile and what follows from it stand in one header.
    """
    text = rung.read_text()
    loops = [
        block_from(text, m.start()) for m in re.finditer(r"for \(int k_tile = (?:0|loaded);", text)
    ]
    assert len(loops) == 2, "of the producer, and of the consumers"
    names = set().union(*map(called, loops))
    lambdas = re.finditer(r"const auto (\w+) = (?=\[&\])", text)
    names |= {n for m in lambdas if m[1] in names for n in called(block_from(text, m.end()))}
    sources = importlib.import_module("tcgemm.cuda_ref.build.toolchain").source_files(rung)
    return {
        str(path.relative_to(ROOT))
        for path in sources
        if path != rung
        for name in re.findall(r"^[^\n/#=]*?(\w+)\([^;]*?\)(?: const)? \{", path.read_text(), re.M)
        if name in names
    }


def test_four_headers_tell_all_of_the_production_main_loop():
    found = headers_of_main_loop(ROOT / "cuda_ref/rungs/wgmma_persistent.cu")
    assert {"cuda_ref/csrc/ptx/wgmma.cuh", "cuda_ref/csrc/sm90/tile.cuh"} <= found
    assert len(found) <= 4, found


SOURCES = (".py", ".cpp", ".hpp", ".cu", ".cuh", ".h")


def tracked(*folders: str) -> list[Path]:
    """The source files that git tracks in these folders of the checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the git checkout")
    command = ["git", "ls-files", *folders]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return [ROOT / name for name in listed.split() if name.endswith(SOURCES)]


def test_no_source_file_is_longer_than_one_can_keep_in_mind():
    sources = [path for path in tracked() if ROOT / "tests" not in path.parents]
    assert len(sources) > 200
    kernels = [ROOT / "triton_kernels/rungs", ROOT / "triton_kernels/shapes"]
    long = {}
    for path in sources:
        lines = len(path.read_text().splitlines())
        if lines > (250 if path.suffix == ".cu" or path.parent in kernels else 400):
            long[str(path.relative_to(ROOT))] = lines
    assert not long


def test_no_folder_holds_more_files_than_one_can_look_through():
    held = Counter(str(path.parent.relative_to(ROOT)) for path in tracked(*FOLDERS))
    assert held["tcgemm"] > 20
    assert {folder: count for folder, count in held.items() if count > 30} == {}


def test_the_places_that_the_design_page_sends_to_exist():
    page = (ROOT / "docs/design.md").read_text()
    table = page.partition("## Where to look\n")[2].partition("\n## ")[0]
    places = re.findall(r"((?:tcgemm|triton_kernels|cuda_ref)/[\w/.-]+\.\w+)(?: `(\w+)`)?", table)
    assert len(places) > 15
    for path, name in places:
        text = (ROOT / path).read_text()
        defined = rf"(def|struct|void|enum class) {name}\b|^{name}\b.* = " if name else ""
        assert re.search(defined, text, re.M), f"{path} defines no {name}"


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


def test_a_cuda_rung_loads_neither_the_simulator_nor_nvrtc_s_launchers_nor_triton_kernels():
    code = (
        "import sys, torch\n"
        "from tcgemm import dispatch, problem\n"
        "of = problem.Problem.stored(512, 512, 512, 'bfloat16', 'bfloat16', capability=(9, 0))\n"
        "row = dispatch.choose(of, 'cuda')\n"
        "dispatch.load('cuda', row.name)\n"
        "print([m for m in sys.modules if m.startswith('tcgemm.')])"
    )
    loaded = set(ast.literal_eval(run_python(code)))
    assert "tcgemm.cuda_ref.build.extensions" in loaded
    beside = ("cuda_ref.simulator", "cuda_ref.nvrtc.", "triton_kernels")
    assert not {m for m in loaded if m.startswith(tuple(f"tcgemm.{name}" for name in beside))}


def test_python_s_collector_of_garbage_waits_for_imports():
    code = (
        "import gc, torch, tcgemm\n"
        "began = []\n"
        "gc.callbacks.append(lambda *told: began.append(told))\n"
        "tcgemm.matmul\n"
        "imported = [of['generation'] for phase, of in began if phase == 'start']\n"
        "assert gc.isenabled()\n"
        "gc.disable()\n"
        "tcgemm.gemm, tcgemm.linear\n"
        "assert not gc.isenabled()\n"
        "print(imported)"
    )
    assert ast.literal_eval(run_python(code)) in ([], [0])  # one may begin right behind


def test_listing_the_rows_imports_no_triton():
    code = (
        "import sys, tcgemm.triton_kernels as t, tcgemm.cuda_ref as c\n"
        "assert len(t.KERNELS) >= 5 and len(c.KERNELS) >= 6\n"
        "print('triton' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


def test_help_needs_no_torch_and_answers_within_three_tenths_of_a_second():
    code = (
        "import sys\nsys.argv = ['tcgemm', '--help']\n"
        "from tcgemm.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules\n"
    )
    times: dict[str, list[float]] = {"help": [], "parser": []}
    for _ in range(5):  # on a processor, so that what else runs here counts less
        for name, program in (("help", code), ("parser", "import typer.main, typer.rich_utils")):
            before = os.times()
            output = run_python(program)
            after = os.times()
            # of children, user and system
            times[name].append(sum(after[2:4]) - sum(before[2:4]))
            assert name == "parser" or {"bench", "report"} <= set(output.split())
        # Where all is slower, the package that prints any help is slower as well.
        if min(times["help"]) < max(0.3, 3 * min(times["parser"])):
            return
    pytest.fail(f"seconds on a processor: {times}")


def test_the_bare_folder_names_are_refused():
    for name in ("triton_kernels", "cuda_ref"):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport {name}"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode != 0
        assert "ImportError" in result.stderr
