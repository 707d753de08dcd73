"""The command line as a new user meets it: help, mistakes, names that stay whole."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tcgemm
from tcgemm import dispatch, gpus, vocabulary, waiting
from tcgemm.cli import app
from tcgemm.cli.application import COMMANDS
from tcgemm.errors import OperandError, UnknownNameError
from tcgemm.tools.exercise.catalogue import EXERCISES

ROOT = Path(__file__).parent.parent


def invoke(*arguments, columns=100):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_has_two_spellings(command, option):
    result = invoke(*command, option)
    assert result.exit_code == 0
    assert "Usage: " in result.output
    assert set(command or COMMANDS) <= set(re.findall(r"[\w-]+", result.output))


def test_the_version():
    result = invoke("--version")
    assert (result.exit_code, result.output.strip()) == (0, f"tcgemm {tcgemm.__version__}")


def test_the_module_is_the_command():
    output = subprocess.run(
        [sys.executable, "-m", "tcgemm", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert output.strip() == f"tcgemm {tcgemm.__version__}"


HEAVY = {
    "IPython", "jinja2", "matplotlib", "numpy", "pandas", "scipy", "seaborn", "sphinx", "torch",
    "triton",
}  # fmt: skip
"""What takes long to import, and no mistake in an argument needs."""

MISTAKEN = """\
import contextlib, json, os, sys, tempfile, time
from tcgemm.cli import main
import typer.main
with contextlib.suppress(ImportError):  # what typer imports for each command
    import pydantic.type_adapter, pydantic.types
began = time.process_time()
for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv, code = ['tcgemm', *arguments], 0
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
            print(*sys.modules)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        said = [out.seek(0) or out.read().decode(), err.seek(0) or err.read().decode()]
        seconds = began + used.ru_utime + used.ru_stime
        print(json.dumps([os.waitstatus_to_exitcode(status), *said, seconds]), flush=True)
"""
"""A program that makes each mistake in a process forked from one that has imported the command
line and its library; prints of each how it ended, what it wrote, and the seconds on a processor,
those of the imports with them."""

PARSED = """\
import sys, typer, rich.console, rich.table
app = typer.Typer()
@app.callback()
def group(): pass
@app.command()
def one(first: str, second: str = "nn", third: int = 0, fourth: bool = False): sys.exit(2)
sys.argv = ['app', 'one', 'x', '--second', 'nt']
app()
"""
"""A program of the command line's own library, of one command that does nothing."""


def timed(code):
    """What a new process with this code returns, and its seconds on a processor."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    after = os.times()
    return done, sum(after[2:4]) - sum(before[2:4])


MISTAKES = [
    (["explain", "4096"], "malformed shape '4096'"),
    (["explain", "8x8x8", "--dtype", "float17"], "unknown dtype 'float17'"),
    (["explain", "8x8x8", "--layout", "nx"], "choose nn, nt, tn or tt"),
    (["explain", "8x8x8", "--epilogue", "swish"], "unknown epilogue 'swish'"),
    (["explain", "8x8x8", "--compute", "tf32"], "compute is 'tf32'"),
    (["explain", "8x8x8", "--gpu", "voodoo"], "unknown GPU 'voodoo'"),
    (["explain", "8x8x8", "--bananas"], "--bananas"),
    (["show-kernel", "triton/naive", "--shape", "8"], "malformed shape '8'"),
    (["show-kernel", "triton/naive", "--stage", "mud"], "unknown stage 'mud'"),
    (["simulate", "naive", "--shape", "8"], "malformed shape '8'"),
    (["simulate", "naive", "--order", "up"], "forward, reverse, random:SEED or late:WARP"),
    (["simulate", "unheard"], "unknown kernel 'unheard'"),
    (["bench", "--shape", "8"], "malformed shape '8'"),
    (["bench", "--suite", "sweet"], "unknown suite 'sweet'"),
    (["bench", "--several", "--layout", "tn"], "--layout: --several does not take it"),
    (["bench", "--steady", "--budget", "3", "--resume"], "--budget, --resume: --steady does"),
    (["bench", "--seconds", "3"], "--seconds: only --steady takes it"),
    (["bench", "--timeline"], "--timeline: only --several takes it"),
    (["bench", "--several", "--rows", "8", "--shape", "8x8x8"], "--rows: --shape is given in"),
    (["bench", "--suite", "quick", "--shape", "8x8x8"], "--suite: --shape is given in its"),
    (["bench", "--count", "5"], "--count: only --suite drawn or drawn-batched takes it"),
    (["tune", "--suite", "llm", "--shape", "8x8x8"], "--suite: --shape is given in its"),
    (["tune", "--shape", "8"], "malformed shape '8'"),
    (["verify", "--dtype", "float17"], "unknown dtype 'float17'"),
    (["explain", "8x8x8", "--kernel", "wmma_persistant"], "did you mean wgmma_persistent?"),
    (["explain", "8x8x8", "--backend", "cud"], "choose from triton, cuda, cublas"),
    (["explain", "8x8x8", "--results", "/nope"], "/nope/results.csv: no such file"),
    (["bench", "--kernel", "cuda/unheard"], "unknown kernel 'cuda/unheard': choose from"),
    (["bench", "--kernel", "skinny", "--backend", "cublas"], "unknown kernel 'skinny'"),
    (["bench", "--backend", "cud"], "unknown backend 'cud'"),
    (["bench", "--out", str(Path(__file__).parent)], "holds other files and no results.csv"),
    (["show-kernel", "triton/unheard"], "unknown kernel 'triton/unheard'"),
    (["show-kernel", "triton/naive", "--compare", "cuda/unheard"], "unknown kernel 'cuda/unh"),
    (["warm", "--backend", "cud"], "unknown backend 'cud'"),
    (["report", "/nope"], "/nope/results.csv: no such file"),
]


def mistaken(cases):
    """How each of them ended, what it wrote to stdout and stderr, and its seconds."""
    done = subprocess.run(
        [sys.executable, "-c", MISTAKEN, json.dumps(cases)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def all_mistaken():
    """All of MISTAKES by one process, which spares each the import of the command line."""
    return mistaken([arguments for arguments, _ in MISTAKES])


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_named_before_torch_is_imported_and_within_half_a_second(number, all_mistaken):
    arguments, words = MISTAKES[number]
    found = all_mistaken[number]
    spent, parser = [], []  # on a processor, so that what else runs here counts less
    while len(spent) < 4:
        code, out, err, seconds = found
        assert code == 2, err
        assert words in err
        modules = set(out.split())
        assert not HEAVY & modules
        others = set(COMMANDS.values()) - {COMMANDS[arguments[0]]}
        assert not others & modules, "a command is imported that was not asked for"
        if seconds < 0.5:
            return
        spent.append(seconds)
        done, seconds = timed(PARSED)
        assert done.returncode == 2, done.stderr
        parser.append(seconds)
        (found,) = mistaken([arguments])
    # Where both cores are busy all takes longer, a command that does nothing as well.
    assert min(spent) < 2.5 * min(parser)


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "8x8x8", "--dtype", "int8", "--dtype", "float16"),
        ("simulate", "naive", "--shape", "8x8x8", "--shape", "16x16x16"),
        ("bench", "--seed", "1", "--seed", "2"),
        ("verify", "--fuzz", "1", "--fuzz", "1"),
    ],
)
def test_an_option_given_twice_is_refused_where_the_last_would_win(arguments):
    result = invoke(*arguments)
    assert isinstance(result.exception, OperandError)
    option = next(word for word in arguments if word.startswith("--"))
    assert f"{option} is given 2 times" in str(result.exception)


def test_an_option_that_is_repeatable_may_be_repeated():
    result = invoke(
        "explain", "64x64x64", "--gpu", "h200", "--json", "--backend", "triton", "--backend", "cuda"
    )
    assert result.exit_code == 0, result.output
    assert [c["backend"] for c in json.loads(result.stdout)["choices"]] == ["triton", "cuda"]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_kernels_keeps_every_name_whole(columns):
    result = invoke("kernels", columns=columns)
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    rows, _, types = result.output.partition("how it is summed")
    for row in dispatch.select():
        assert row.full_name in rows
        assert re.search(rf"\b{row.name}\b", types), row.name
    assert max(map(len, result.output.splitlines())) <= columns


@pytest.mark.parametrize("columns", [60, 140])
def test_kernels_tells_each_reason_once_below_its_list(columns):
    output = re.sub(r"\s+", " ", invoke("kernels", columns=columns).output)
    reasons = {dispatch.why_not_here(row) for row in dispatch.select()} - {None}
    for reason in reasons:
        kinds = {row.kind for row in dispatch.select() if dispatch.why_not_here(row) == reason}
        assert output.count(f": {reason}") == len(kinds)


@pytest.mark.parametrize("columns", [60, 80])
def test_verify_keeps_its_names_whole(columns):
    names = ("cuda/wmma_double_buffered", "triton/grouped")
    kernels = [word for name in names for word in ("--kernel", name)]
    result = invoke("verify", *kernels, "--fuzz", "2", "--no-edges", columns=columns)
    assert result.exit_code == 0, result.output
    table = result.output.partition("The call with")[0]
    assert "…" not in table
    for word in (*names, "refused", "failed"):
        assert re.search(rf"(?<!\S){word}(?!\S)", table), word
    assert max(map(len, table.splitlines())) <= columns


@pytest.mark.parametrize("columns", [60, 80])
def test_doctor_keeps_paths_and_commands_in_one_piece(columns):
    lines = invoke("doctor", columns=columns).output.splitlines()
    assert any(line.startswith("ok") and line.endswith(f"({sys.executable})") for line in lines)


def completions(words):
    """What bash offers for the last of these words."""
    line = ["tcgemm", *words.split(" ")]
    asked = {"_TCGEMM_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(line)}
    code = "import sys; from tcgemm.cli import main; sys.argv = ['tcgemm']; main()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "COMP_CWORD": str(len(line) - 1)},
        capture_output=True, text=True,
    ).stdout.split()  # fmt: skip


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("sh", {"show-kernel"}),
        ("explain --lay", {"--layout"}),
        ("explain 8x8x8 --gpu rtx-4", {"rtx-4090"}),
        ("bench --suite s", {"squares", "seeds"}),
        ("bench --seed 1 --seed 2 --layout t", {"tn", "tt"}),
        (
            "bench --kernel cuda/mma_",
            {f"cuda/mma_{x}" for x in ("multistage", "float64", "odd", "types")},
        ),
        ("show-kernel triton/d", {"triton/descriptor"}),
        ("explain --dtype float8_e4", {"float8_e4m3fn"}),
    ],
)
def test_a_shell_completes_commands_options_and_names(words, offered):
    assert set(completions(words)) == offered


def test_completion_is_installed_for_bash(tmp_path):
    code = "import sys; from tcgemm.cli import main; main()"
    script = f"{sys.executable} -c '{code}' --install-completion; true"
    bash = {**os.environ, "HOME": str(tmp_path), "SHELL": "/bin/bash"}
    done = subprocess.run(["bash", "-c", script], env=bash, capture_output=True, text=True)
    assert "completion installed" in done.stdout, done.stderr
    assert "bash_completions" in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kernels",), "listing the kernels"),
        (("doctor",), "looking"),
        (("explain", "8x8x8"), "explaining 8x8x8"),
        (("simulate", "order", "--shape", "1024x1024x1024"), "following the tiles of 1024x1024"),
        (("simulate", "naive", "--shape", "8x8x8"), "simulating naive"),
        (("show-kernel", "cuda/tiled"), "compiling cuda/tiled"),
        (("verify", "--kernel", "cuda/naive", "--fuzz", "1", "--no-edges"), "verifying cuda/naive"),
        pytest.param(
            ("warm", "--gpu", "h200", "--backend", "triton", "--dtype", "float64", "--within", "1"),
            "compiling",
            marks=pytest.mark.exhaustive,  # test_warm.py waits for what it says and stops it
        ),
    ],
)
def test_what_takes_long_says_so_where_it_goes_to_a_pipe(arguments, said, monkeypatch):
    if arguments[0] == "show-kernel" and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    monkeypatch.setattr(waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(waiting, "EVERY_S", 0.002)
    result = invoke(*arguments)
    assert result.exit_code in (0, 1), result.output
    assert re.search(rf"^{said}.*, \d+ s$", result.stderr, re.M)
    assert said not in result.stdout


@pytest.mark.parametrize("columns", [60, 80])
def test_exercises_keep_every_name_whole(columns):
    output = invoke("exercise", "list", columns=columns).output
    assert max(map(len, output.splitlines())) <= columns
    assert {each.page for each in EXERCISES} <= set(output.split())


def test_the_names_of_cublas_are_those_of_its_rows():
    rows = importlib.import_module("tcgemm.cublas").KERNELS
    assert tuple(row["name"] for row in rows) == vocabulary.OF_CUBLAS


@pytest.mark.parametrize("name", ["tune", "simulate"])
def test_a_paragraph_of_help_fills_its_lines(name):
    printed = invoke(name, "--help", columns=80).output.partition("Options")[0]
    lines = printed.partition("Usage")[2].splitlines()[1:]
    for line, after in itertools.pairwise(line.strip() for line in lines):
        if line and after and line[0].isalnum() and after[0].isalnum():
            assert len(line) + 1 + len(after.split()[0]) > 76, (line, after)


@pytest.mark.parametrize("columns", [60, 80])
def test_simulate_order_keeps_its_names_whole(columns):
    result = invoke("simulate", "order", "--shape", "2048x2048x2048", columns=columns)
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    for text in ("triton/grouped, tiles of", "cuda/wmma_grouped, tiles of", "row after row"):
        assert text in result.output
    assert "GROUP_M 64" in result.output
    assert max(map(len, result.output.splitlines())) <= columns


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        *((name, "nvidia-geforce-rtx-4090") for name in (
            "rtx4090", "RTX4090", "RTX 4090", "rtx-4090", "rtx_4090", "4090", "GeForce RTX 4090",
            "NVIDIA GeForce RTX 4090", "geforce-rtx4090", "nvidia-geforce-rtx-4090",
        )),
        ("h200", "nvidia-h200"), ("H200-NVL", "nvidia-h200-nvl"), ("h200nvl", "nvidia-h200-nvl"),
        ("h100pcie", "nvidia-h100-pcie"), ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm"),
        ("a100", "nvidia-a100-40gb-sxm"), ("A100 80GB", "nvidia-a100-80gb-sxm"),
        ("a10", "nvidia-a10"), ("l4", "nvidia-l4"), ("L40S", "nvidia-l40s"), ("t4", "nvidia-t4"),
        ("Tesla T4", "nvidia-t4"),
    ],
)  # fmt: skip
def test_a_gpu_is_found_however_it_is_written(name, slug):
    assert gpus.find(name).slug == slug


@pytest.mark.parametrize("name", ["", "nvidia", "rtx 3090 ti", "a10g", "4", "voodoo", "h200 mig"])
def test_a_gpu_that_is_none_is_refused(name):
    with pytest.raises(UnknownNameError, match="choose from nvidia-t4"):
        gpus.find(name)


# Not of reports/cpu, which ``make report`` leaves in the tree.
@pytest.mark.parametrize(
    "path", sorted((ROOT / "reports").glob("nvidia-*/environment.json")),
    ids=lambda path: path.parent.name,
)  # fmt: skip
def test_the_tables_l2_is_the_drivers(path):
    """One size of the L2 in the models and in the reports."""
    runs = json.loads(path.read_text()).values()
    assert runs
    for facts in runs:
        assert gpus.lookup(facts["gpu"]).l2_bytes == facts["l2_bytes"]
