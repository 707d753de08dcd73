"""README.md: what it shows runs, its tables are the code's, its picture is drawn from rows."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
import typer.main
from markdown_it import MarkdownIt
from packaging.requirements import Requirement
from typer.testing import CliRunner

import tcgemm
from tcgemm import dispatch, gpus
from tcgemm.bench.cases import NAMES
from tcgemm.cli import app
from tcgemm.cli.application import COMMANDS
from tcgemm.errors import UnsupportedError
from tcgemm.problem import Problem
from tcgemm.tools import doctor
from tcgemm.tools.explain.bound import bound

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "docs" / "site"))

import numbers_of  # noqa: E402
import plain_figures  # noqa: E402


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def section(title):
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_its_python_runs():
    names = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    expected = names["a"].float() @ names["b"].float()
    torch.testing.assert_close(names["d"], expected, rtol=1e-3, atol=1e-3)
    assert names["c"].shape == names["d"].shape
    for number in (0, 2):
        layer = names["model"][number]
        assert isinstance(layer, tcgemm.nn.Linear)
        assert layer.weight.grad.abs().max() > 0


def commands():
    lines = (line for block in blocks("sh") for line in block.splitlines())
    return [shlex.split(line, comments=True) for line in lines if line.startswith("tcgemm ")]


def test_its_commands_parse():
    group = typer.main.get_command(app)
    assert len(commands()) >= 10
    for _, name, *arguments in commands():
        if name.startswith("--"):
            assert any(name in option.opts for option in group.params), name
        else:
            group.commands[name].make_context(name, arguments)


def test_it_names_every_command_suite_and_setting():
    assert {words[1] for words in commands()} >= set(COMMANDS)
    suites = section("Commands").partition("The suites: ")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`(\w[\w-]*)`", suites)) == NAMES
    code = [path.read_text() for folder in ("tcgemm", "cuda_ref", "triton_kernels")
            for path in (ROOT / folder).rglob("*.py")]  # fmt: skip
    read = r'(?:environ\.get\(|VARIABLE = )"(TCGEMM_[A-Z_]+)"'
    of_users = {name for text in code for name in re.findall(read, text)}
    of_users -= {"TCGEMM_OWN_KERNELS"}  # commands set it for --kernel FILE
    told = [row[0].strip("`") for row in map(cells, section("Settings").splitlines())]
    assert len(of_users) == 7
    assert of_users == {name for name in told if "TCGEMM" in name}


def test_its_figures_are_what_committed_rows_give():
    assert numbers_of.renewed(TEXT) == TEXT, "run: python docs/site/numbers_of.py README.md"
    written = re.sub(r"<!-- tcgemm:report:begin.*?report:end -->", "", TEXT, flags=re.S)
    figures = [figure for _, figure in plain_figures.plain(written)]
    assert not figures, f"no row holds {figures}: make each a query, or say what it is"


def test_what_it_says_of_drawn_shapes_is_what_their_page_shows():
    """So a page with newer seeds has README say the same."""
    page = (ROOT / "docs/lab/drawn_shapes.md").read_text()
    seeds = {
        int(last): start for start, last in re.findall(r"^(\*\*Seeds \d+ to (\d+)\*\*)", page, re.M)
    }
    newest = re.findall(rf"^{re.escape(seeds[max(seeds)])}.*$", page, re.M)[0]
    shown = [found["query"] for found in numbers_of.FIGURE.finditer(section("How fast"))]
    drawn = [query for query in shown if " drawn" in query]
    of_h200 = [query for query in drawn if "drawn@" not in query]
    assert len(of_h200) == 7
    assert all(query in newest for query in of_h200)
    assert all(query in page for query in drawn)


@pytest.mark.parametrize("name", ["explain", "kernels", "doctor"])
def test_what_answers_at_once_runs_as_written(name):
    (command,) = [words for words in commands() if words[1] == name]
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout


def test_every_extra_is_told_with_what_it_brings():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = {row[0].strip("`"): row[1] for row in map(cells, section("Install").splitlines())
            if row[0].strip("`") in extras}  # fmt: skip
    assert set(rows) == set(extras) - {"dev"}
    for extra in ("cli", "docs"):
        brought = {Requirement(each).name for each in extras[extra]}
        assert set(rows[extra].split(", ")) == brought
    assert {*rows["report"].split(", "), "numpy"} == {Requirement(e).name for e in extras["report"]}


def by_the_model(gpu):
    """The line of the table of other GPUs."""
    capability = gpus.capability(gpu)
    chosen, floors = {"triton": [], "cuda": []}, []
    for M, N, K in ((4096, 4096, 4096), (16, 4096, 14336)):
        problem = Problem.stored(M, N, K, "bfloat16", "bfloat16", "nn", capability=capability)
        for backend, names in chosen.items():
            names.append(f"`{dispatch.choose(problem, backend).name}`")
        floors.append(f"{bound(problem, gpu).floor_us:.0f} us")
    kernels = [", ".join(dict.fromkeys(names)) for names in chosen.values()]
    return [gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce "), *kernels, *floors]


OTHERS = ("a100-80gb-sxm", "l40s", "rtx-4090", "h100-sxm", "b200")


def test_what_other_gpus_would_do_is_what_the_model_says():
    table = section("How fast").partition("### On other GPUs")[2]
    rows = [cells(line) for line in table.splitlines() if line.startswith("|")]
    assert "by the model" in rows[0][0]
    assert rows[2:] == [by_the_model(gpus.find(slug)) for slug in OTHERS]
    (command,) = re.findall(r"`tcgemm (explain [^`]+)`", table)
    assert rows[0][-1] == f"{command.split()[1].replace('x', ' × ')} takes at least"
    said = CliRunner().invoke(app, command.split()).stdout
    (floor,) = re.findall(r"no kernel takes less than ([\d.]+) us", said)
    assert f"{float(floor):.0f} us" == rows[2][-1]
    measured = {path.parent.name for path in (ROOT / "reports").glob("*/results.csv")}
    assert not measured & {gpus.find(slug).slug for slug in OTHERS}


def test_an_amd_gpu_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    dispatch._capability.cache_clear()
    with pytest.raises(UnsupportedError, match=r"for NVIDIA GPUs .* AMD's \(6\.4\.1\): use torch"):
        dispatch._capability(0)
    assert "NVIDIA GPUs" in dispatch.why_not_here(dispatch.find("triton", "naive"))
    assert doctor._gpu().state == "missing"


def test_the_picture_is_drawn_from_the_committed_rows(tmp_path, monkeypatch):
    script = str(ROOT / "scripts/draw_ladder.py")
    monkeypatch.setattr(sys, "argv", [script, str(ROOT / "reports/nvidia-h200"), str(tmp_path)])
    runpy.run_path(script, run_name="__main__")
    for name in ("ladder-light.svg", "ladder-dark.svg"):
        drawn = (tmp_path / name).read_text()
        ET.fromstring(drawn)
        assert drawn == (ROOT / "docs" / name).read_text(), "run: python scripts/draw_ladder.py"
        assert f"docs/{name}" in TEXT
        for rung in ("wmma_double_buffered", "wgmma_persistent", "warp_specialized"):
            assert f">{rung}<" in drawn


def test_it_links_to_what_it_grew_from_and_is_compared_with():
    for target in (
        "bradleygannon.com/gemm-on-jetson", "rohan-reddy.github.io/posts/001-gemm-optimization",
        "NVIDIA/cutlass", "deepseek-ai/DeepGEMM", "pranjalssh/fast.cu", "Dao-AILab/quack",
        "triton-lang.org", "siboehm.com",
    ):  # fmt: skip
        assert re.search(rf"\]\(https://[^)]*{re.escape(target)}", TEXT), target


def test_the_extras_of_its_install_lines_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    lines = [line for block in blocks("sh") for line in block.splitlines() if "pip" in line]
    named = {name for line in lines for group in re.findall(r"\[([\w,]+)\]", line)
             for name in group.split(",")}  # fmt: skip
    assert {"cli", "report"} <= named <= set(extras)
    assert {shlex.split(line, comments=True)[2] for line in lines} >= {"."}


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_and_block_of_a_page_is_rendered_as_one(page):
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(page.read_text())
    prose = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.S)
    assert not re.search(r"<p>\|", prose), "a table that is none: its rule or a cell is missing"
    assert "```" not in prose
    assert not re.search(r"\]\(", prose), "a link that is none"
