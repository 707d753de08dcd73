"""tcgemm tune --model: what is timed, fitted, judged and kept, by committed rows and no timer."""

from __future__ import annotations

import csv
import fcntl
import json
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tcgemm import dispatch, gpus
from tcgemm.bench import drawn, run, store
from tcgemm.choosing import model, model_files, within
from tcgemm.cli import app
from tcgemm.errors import OperandError, ResultsError, UnsupportedError
from tcgemm.request import planning_for
from tcgemm.tools.tune import command
from tcgemm.tools.tune import model as tool

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "reports" / "nvidia-h200" / "trials" / "drawn_kernels.csv"
RELATIVES_ROWS = ROOT / "reports" / "nvidia-h100-sxm" / "trials" / "drawn_kernels.csv"
H200 = "nvidia-h200"
SEEDS = (201, 202, 203)
BOARD = tool.Gpu("NVIDIA H200", H200, 132, (9, 0))
ASKED = ("tune", "--model", *(word for seed in SEEDS for word in ("--seed", str(seed))))


def of_seed(row):
    return int(row["suite"].split("-")[1].removeprefix("s"))


@pytest.fixture(scope="module")
def rows():
    """What an H200 took on the drawn shapes of SEEDS."""
    with ROWS.open(newline="") as file:
        return [row for row in csv.DictReader(file) if of_seed(row) in SEEDS]


@pytest.fixture
def h200(tmp_path, monkeypatch):
    """A folder of the user's own, and tables, costs and models of an H200, whatever is here."""
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(within, "slug_of", lambda problem: H200)
    monkeypatch.setattr(tool, "this_gpu", lambda: BOARD)
    monkeypatch.setattr(command, "_need_gpu", lambda: None)
    model_files.forget()
    with planning_for(gpus.find("h200")):
        yield tmp_path
    model_files.forget()


@pytest.fixture(scope="module")
def fit_of_rows(rows):
    """``tool.fit``, which computes what it makes of ``rows`` and SEEDS once for all tests."""
    really, made = tool.fit, []

    def fit(found, gpu, seeds):
        if found is not rows:
            return really(found, gpu, seeds)
        assert (gpu, tuple(seeds)) == (BOARD, SEEDS)
        if not made:
            made.append(json.dumps(really(found, gpu, seeds)))
        return json.loads(made[0])

    return fit


@pytest.fixture
def timed_as(h200, monkeypatch, fit_of_rows):
    """Have the tool find these rows where it would time kernels."""
    monkeypatch.setattr(tool, "fit", fit_of_rows)

    def find(found):
        monkeypatch.setattr(tool, "contenders", lambda cases, gpu: [])
        monkeypatch.setattr(tool, "time_kernels", lambda *told: found)

    return find


def product(M, N, K, layout="nn"):
    case = drawn.Case("shape", M, N, K, "bfloat16", "bfloat16", layout, "")
    return case.product(capability=(9, 0), device="cuda")


def test_what_is_fitted_is_written_and_is_what_choices_go_by(h200, timed_as, rows):
    timed_as(rows)
    problem = product(128, 128, 128)
    assert dispatch.choose(problem, "cuda").name == "small"
    assert not model_files.of(H200).yours
    result = CliRunner().invoke(app, [*ASKED, "--json"])
    assert result.exception is None, result.output
    told = json.loads(result.output)
    path = h200 / "model-nvidia-h200.json"
    assert told["path"] == str(path)
    table = json.loads(path.read_text())
    assert (table["gpu"], table["sms"], table["seeds"]) == (H200, 132, list(SEEDS))
    losses = {loss["backend"]: loss for loss in told["held_out"]}
    assert set(losses) == {"cuda", "triton"}
    for loss in losses.values():
        assert loss["rows"] > 150
        assert 0 < loss["of_model"] < loss["of_tables"] - 0.01

    now = model_files.of(H200)  # without a word of ours that the file is new
    assert (now.yours, now.seeds, now.path) == (True, SEEDS, path)
    assert dispatch.choose(problem, "cuda").name == "small"
    table["kernels"]["cuda/small"]["start"][0] = 1000.0
    path.write_text(json.dumps(table))
    model_files.forget()
    assert dispatch.choose(problem, "cuda").name == "one_wave"


def test_the_command_tells_what_is_lost_beside_tables(h200, timed_as, rows):
    timed_as(rows)
    result = CliRunner().invoke(app, list(ASKED))
    lines = result.stdout.splitlines()
    assert lines[0] == "Slower than the fastest timed kernel, each seed held out in turn:"
    held = json.loads((h200 / "model-nvidia-h200.json").read_text())["held_out"]
    for loss, line in zip(held, lines[1:3], strict=True):
        assert line.split()[0] == loss["backend"]
        mine, theirs = (f"{100 * loss[name]:.1f} %" for name in ("of_model", "of_tables"))
        assert f"{mine} by the model, {theirs} by tables and costs alone" in line
    assert str(h200 / "model-nvidia-h200.json") in result.output


def test_it_has_to_be_as_good_as_the_model_that_an_h100_takes_over(tmp_path, monkeypatch):
    """Triton's rows of two seeds of an H100, to which the scaled model of an H200 is not fitted."""
    h100, beside = tool.Gpu("NVIDIA H100 SXM", "nvidia-h100-sxm", 132, (9, 0)), RELATIVES_ROWS
    monkeypatch.setenv("TCGEMM_CACHE_DIR", str(tmp_path))
    model_files.forget()
    with planning_for(gpus.find("h100")), beside.open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["backend"] != "cuda"]
        asked = (found, h100, (700, 701))
        with pytest.raises(ResultsError, match="worse than nvidia-h200's scaled model") as caught:
            tool.fit(*asked)
        assert "in triton, where that of the present one is" in str(caught.value)
        # Of a seed that it has seen nothing can be said.
        present = model_files.of(h100.slug)
        with model_files.standing_in(h100.slug, present._replace(seeds=(701, 9))):
            losses = tool.fit(*asked)["held_out"]
        assert {loss["of_present"] for loss in losses} == {None}
        with model_files.standing_in(h100.slug, model_files.Model({})):
            losses = tool.fit(*asked)["held_out"]
        assert {loss["of_present"] for loss in losses} == {None}
    model_files.forget()


def test_explain_says_whose_model_it_is(h200):
    def explained():
        asked = ["explain", "128x128x128", "--backend", "cuda", "--gpu", "h200"]
        return " ".join(CliRunner().invoke(app, asked).output.split())

    assert "other kernels the shipped model of drawn shapes has it at" in explained()
    shipped = Path(model.__file__).with_name("model-nvidia-h200.json")
    (h200 / shipped.name).write_text(shipped.read_text())
    model_files.forget()
    assert "other kernels your model of drawn shapes has it at" in explained()


def nothing_is_written(folder, *asked):
    before = model_files.of(H200)
    result = CliRunner().invoke(app, list(asked or ASKED))
    assert isinstance(result.exception, ResultsError), result.output
    assert not list(folder.glob("model-*.json"))
    assert model_files.of(H200) is before, "no fit that was judged stands in its place"
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_too_few_rows_for_a_fit_are_said_with_their_numbers(h200, timed_as, rows):
    right = [row for row in rows if row["status"] == "ok"]
    few = [row for row in right if row["kernel"] in ("small", "gemv")][:20]
    timed_as([*few, {**rows[0], "status": "failed"}])
    said = nothing_is_written(h200)
    assert "a kernel needs 15, and a language two such kernels" in said
    assert "Of all rows: 20 ok, 1 failed" in said
    timed_as([])
    assert "the most have none. Of all rows: none." in nothing_is_written(h200)


def test_too_few_rows_to_judge_a_fit_by_are_said(h200, timed_as, rows):
    """All rows of one seed and a few of another: neither says much of the other's shapes."""
    first = [row for row in rows if of_seed(row) == 201]
    second = [row for row in rows if of_seed(row) == 202][:40]
    timed_as([*first, *second])
    said = nothing_is_written(h200)
    assert "too few rows to judge a model by" in said
    assert "and 30 are needed" in said


def test_a_model_that_chooses_worse_than_tables_is_not_written(h200, timed_as, rows):
    """Where tables are right each time, whatever else is taken is slower."""
    cases = defaultdict(list)
    for row in rows:
        if row["status"] == "ok" and row["among"] != "alone" and row["backend"] != "cublas":
            case = tuple(row[x] for x in ("suite", "M", "N", "K", "dtype_in", "layout", "among"))
            cases[row["backend"], case].append(row)
    found = []
    for (backend, (_, M, N, K, dtype, layout, _)), of_case in cases.items():
        case = drawn.Case("", int(M), int(N), int(K), dtype, dtype, layout, "")
        problem = case.product(capability=(9, 0), device="cuda")
        taken = dispatch.by_tables(problem, backend)[0].name
        least = min(float(row["ms_p50"]) for row in of_case)
        found += [
            {**row, "ms_p50": str(0.9 * least if row["kernel"] == taken else row["ms_p50"])}
            for row in of_case
        ]
    timed_as(found)
    said = nothing_is_written(h200)
    assert "chooses worse than tables and costs alone, so none is written" in said
    assert "where that of tables and costs is 0.0 % slower" in said


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda table: "{", "Expecting property name"),
        (lambda table: "[]", "it holds a list, not a model"),
        (lambda table: {**table, "gpu": "nvidia-a100"}, "it is of 'nvidia-a100'"),
        (lambda table: {**table, "sms": 0}, "0 SMs"),
        (lambda table: {**table, "seeds": ["7"]}, "no list of whole numbers"),
        (lambda table: {**table, "kernels": []}, "no constants of kernels"),
        (lambda table: {**table, "kernels": {"cuda/small": {"rows": 20}}}, "other terms than"),
        (
            lambda table: json.dumps(table).replace("[2.", "[-2.", 1),
            "not three numbers from 0 on",
        ),
        (
            lambda table: json.dumps(table).replace("1.0,", "NaN,", 1),
            "not three numbers from 0 on",
        ),
        (
            lambda table: json.dumps(table).replace("1.0,", f"1{400 * '0'},", 1),
            "not three numbers from 0 on",
        ),
        (lambda table: 100_000 * "[", "recursion"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_damaged_or_foreign_file_is_passed_over_with_a_warning(h200, caplog, damage, says):
    shipped = json.loads(Path(model.__file__).with_name("model-nvidia-h200.json").read_text())
    path = h200 / "model-nvidia-h200.json"
    path.write_text(json.dumps(shipped))
    assert model_files.of(H200).yours, "it is a model before it is damaged"
    text = damage(shipped)
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    model_files.forget()
    assert not model_files.of(H200).yours
    assert dispatch.choose(product(128, 128, 128), "cuda").name == "small"
    (warning,) = caplog.messages
    assert str(path) in warning
    assert says in warning
    assert "'tcgemm tune --model'" in warning


def test_of_a_gpu_that_is_in_no_table_the_file_tells_its_sms(h200):
    shipped = json.loads(Path(model.__file__).with_name("model-nvidia-h200.json").read_text())
    assert (model.sms_of("some-gpu"), model.constants("some-gpu")) == (0, {})
    (h200 / "model-some-gpu.json").write_text(json.dumps({**shipped, "gpu": "some-gpu", "sms": 84}))
    model_files.forget()
    assert model.sms_of("some-gpu") == 84
    assert model.estimated_us(
        "cuda/small", product(64, 64, 64), {"BLOCK_M": 64, "BLOCK_N": 64}, "some-gpu", 84
    )


def test_bench_says_of_a_seed_that_your_model_was_fitted_to_it(h200, timed_as, rows, monkeypatch):
    # The shipped model has seen these rows by their own names, so it would be the better one.
    monkeypatch.setattr(model_files, "_shipped", lambda slug: None)
    model_files.forget()

    def renamed(row):
        return {**row, "suite": row["suite"].replace("drawn-s20", "drawn-s900")}

    timed_as([renamed(row) for row in rows])
    assert drawn.flatters(9001, H200) == ""
    assert CliRunner().invoke(app, ["tune", "--model"]).exception is None
    path = h200 / "model-nvidia-h200.json"
    assert f"fitted to the shapes of seed 9001 (your model {path})" in drawn.flatters(9001, H200)
    assert drawn.flatters(9001, "nvidia-a100") == drawn.flatters(9004, H200) == ""
    assert "seed 201 (bench/drawn.py)" in drawn.flatters(201, H200)


def test_every_kernel_that_may_be_the_fastest_is_a_contender(h200):
    cases = drawn.drawn_cases(9001, 20)
    names = {row.full_name for row in tool.contenders(cases, BOARD)}
    assert set(tool.MAY_BE_FASTEST) <= names
    for case in cases:
        for backend in ("triton", "cuda"):
            problem = case.product(capability=(9, 0), device="cuda")
            assert dispatch.by_tables(problem, backend)[0].full_name in names


def test_kernels_of_other_gpus_are_no_contenders(h200):
    ampere = tool.Gpu("NVIDIA A100", "nvidia-a100-40gb-sxm", 108, (8, 0))
    with planning_for(gpus.find("a100")):
        found = tool.contenders(drawn.drawn_cases(9001, 20), ampere)
    assert all(row.capability <= (8, 0) for row in found)
    names = {row.full_name for row in found}
    assert {"triton/pipelined", "triton/skinny"} <= names
    assert not names & {"triton/warp_specialized", "cuda/wgmma_persistent"}


def test_the_benchmark_times_and_its_rows_are_kept(h200, monkeypatch, capsys):
    cases = drawn.drawn_cases(9001, 3)
    kernels = [dispatch.named("cuda/small"), dispatch.named("triton/skinny")]
    asked = {}

    def timed(units, results, *, budget_s, watch):
        asked.update(units=units, budget_s=budget_s)
        for unit in units:
            watch("begin", unit, None)
            row = {"suite": unit.case.suite, "kernel": unit.kernel, "status": "ok"}
            results.append(row)
            watch("row", unit, row)
        return ["the rows"]

    told = []
    monkeypatch.setattr(run, "run", timed)
    monkeypatch.setattr(tool.Waiting, "update", lambda self, what: told.append(what))
    found = tool.time_kernels(cases, kernels, h200 / "new" / "m.rows", 0.01, quiet=False)
    assert found == ["the rows"]
    assert asked["budget_s"] == 0.01
    assert [(unit.case, unit.full_name) for unit in asked["units"]] == [
        (case, row.full_name) for case in cases for row in kernels
    ]
    assert len(store.read(h200 / "new" / "m.rows")) == 6
    assert told[0].startswith("timing kernels on drawn shapes, 0 of 6 results: ")
    assert told[-1].startswith("timing kernels on drawn shapes, 6 of 6 results: ")


def test_a_file_is_written_under_its_lock_whole_or_not_at_all(h200):
    shipped = json.loads(Path(model.__file__).with_name("model-nvidia-h200.json").read_text())
    path = h200 / "model-nvidia-h200.json"
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writing = threading.Thread(target=tool.write, args=(path, shipped, H200))
        writing.start()
        writing.join(0.3)
        assert writing.is_alive()
        assert not path.exists()
    writing.join(10)
    assert json.loads(path.read_text()) == shipped
    with pytest.raises(ValueError, match="it is of 'nvidia-h200'"):
        tool.write(path, shipped, "nvidia-a100")
    (h200 / "file").write_text("")
    with pytest.raises(ResultsError, match=r"cannot write .*TCGEMM_CACHE_DIR"):
        tool.write(h200 / "file" / "model.json", shipped, H200)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_timed(h200, monkeypatch):
    monkeypatch.setattr(run, "run", lambda *units, **more: pytest.fail("it was timed"))
    assert "is a folder" in nothing_is_written(h200, "tune", "--model", "--out", str(h200))
    (h200 / "file").write_text("")
    asked = ["tune", "--model", "--count", "1", "--out", str(h200 / "file" / "model.json")]
    assert "TCGEMM_CACHE_DIR" in nothing_is_written(h200, *asked)
    (h200 / "mine.rows").write_text("")
    for name, says in (("mine.json", "is a file where a folder"), ("a.rows", "end in .json")):
        asked = ["tune", "--model", "--count", "1", "--out", str(h200 / name)]
        assert says in nothing_is_written(h200, *asked)
    (h200 / "mine.rows").unlink()


def test_a_seed_that_is_given_twice_is_timed_once(h200, monkeypatch):
    timed = []
    monkeypatch.setattr(tool, "contenders", lambda cases, gpu: [])
    monkeypatch.setattr(tool, "time_kernels", lambda cases, *more: timed.extend(cases) or [])
    asked = ["tune", "--model", "--count", "2", "--seed", "7", "--seed", "8", "--seed", "7"]
    nothing_is_written(h200, *asked)
    assert len(timed) == len(set(timed)) == 4


def test_a_file_elsewhere_is_said_to_be_read_by_no_choice(h200, timed_as, rows):
    timed_as(rows)
    result = CliRunner().invoke(app, [*ASKED, "--out", str(h200 / "mine.json")])
    assert f"put it at {h200 / 'model-nvidia-h200.json'} to use it" in result.stdout
    assert not model_files.of(H200).yours


def test_sms_and_slug_are_those_of_the_gpu(monkeypatch):
    found = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", multi_processor_count=114, major=9, minor=0
    )
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: found)
    assert tool.this_gpu() == ("NVIDIA H100 SXM", "nvidia-h100-sxm", 114, (9, 0))


def test_a_stopped_run_says_so(h200, monkeypatch):
    def stopped(*told, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(tool, "tune_model", stopped)
    result = CliRunner().invoke(app, ["tune", "--model"])
    assert result.exit_code == 130
    assert "no model was fitted" in result.output


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        (["--model"], UnsupportedError, "measures on a GPU and there is none here"),
        (["--model", "--seed", "5"], OperandError, "give --seed a second time"),
        (["--model", "--seed", "5", "--seed", "5"], OperandError, "give --seed a second time"),
        (["--model", "--shape", "8x8x8"], OperandError, "--shape: --model does not take it"),
        (["--shape", "8x8x8", "--count", "3"], OperandError, "--count: only --model takes it"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_what_cannot_be_done_is_said(monkeypatch, asked, error, says):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["tune", *asked])
    assert isinstance(result.exception, error), result.output
    assert says in str(result.exception)
