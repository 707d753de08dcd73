"""``tcgemm verify``: what it draws, that it finds planted faults, what it saves."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import random
import sys
import time
from dataclasses import asdict, replace

import pytest
import torch
import workers
from typer.testing import CliRunner

from tcgemm import dispatch
from tcgemm.call import forget
from tcgemm.cli import app
from tcgemm.errors import OperandError
from tcgemm.verify import calls, judge
from tcgemm.verify.calls import DrawnCall, Stored

BACKEND = """
import torch
from tcgemm import epilogue
fault, calls = "", []
KERNELS = (
    dict(name="echo", adds="a rung", pairs=(("float16", "float32"), ("int8", "int32")),
         devices=("cpu", "cuda"), fuses=("alpha", "beta", "bias", "relu", "batch")),
)
def load(name):
    def run(a, b, c, fusion=None):
        value = a.double() @ b.double()
        if fault == "last k":
            value -= a[..., -1:].double() @ b[..., -1:, :].double()
        if fusion is not None:
            value *= fusion.alpha
            if fusion.c is not None:
                value += fusion.beta * fusion.c.double()
            if fusion.bias is not None and fault != "no bias":
                value += fusion.bias.double()
            value = value.to(torch.int64).to(torch.int32) if c.dtype == torch.int32 else value
            value = epilogue.FUNCTIONS[fusion.epilogue](value)
        if fault == "drops nan":
            value = value.nan_to_num()
        c.copy_(value.to(torch.int64) if c.dtype == torch.int32 else value)
        if fault == "last bit":
            c.copy_(c.double() * (1 + 2**-22))
        if fault == "writes beside":
            c.as_strided((1,), (1,), c.storage_offset() - 1).zero_()
        if fault == "writes A":
            a[..., :1, :1] = 0
        calls.append(a)
        if fault == "second call" and len(calls) % 4 == 2:
            c.zero_().sub_(9)
        if fault == "crashes":
            raise RuntimeError("an illegal memory access")
    return run
"""


@pytest.fixture
def echo(monkeypatch, tmp_path):
    """A backend that torch computes, whose ``fault`` a test may set."""
    (tmp_path / "verified_backend.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(dispatch.BACKENDS, "echo", "verified_backend")
    monkeypatch.delitem(sys.modules, "verified_backend", raising=False)
    dispatch.ladder.cache_clear()
    forget()
    dispatch.load.cache_clear()
    yield importlib.import_module("verified_backend")
    dispatch.ladder.cache_clear()
    forget()
    dispatch.load.cache_clear()


def run(*arguments):
    return CliRunner().invoke(app, ["verify", "--backend", "echo", "--workers", "1", *arguments])


def test_a_right_kernel_passes(echo):
    result = run("--fuzz", "60")
    assert result.exit_code == 0, result.output
    assert "echo/echo" in result.output


def test_drawn_calls_alone(echo):
    result = run("--fuzz", "60", "--no-edges")
    assert result.exit_code == 0, result.output
    assert "60 cases in" in result.output


@pytest.mark.parametrize(
    "fault", ["last k", "no bias", "drops nan", "writes beside", "writes A", "crashes"]
)
def test_a_planted_fault_is_found_saved_and_replayed(echo, fault, tmp_path):
    echo.fault = fault
    result = run("--fuzz", "60", "--out", str(tmp_path / "bad"))
    assert result.exit_code == 1, result.output
    saved = sorted((tmp_path / "bad").glob("*.pt"))
    assert saved
    assert f"tcgemm verify --replay {saved[0]}" in result.output.replace("\n", "")
    replayed = CliRunner().invoke(app, ["verify", "--replay", str(saved[0])])
    assert replayed.exit_code == 1, replayed.output
    echo.fault = ""
    replayed = CliRunner().invoke(app, ["verify", "--replay", str(saved[0])])
    assert replayed.exit_code == 0, replayed.output


def test_a_fault_of_a_repeated_call_is_replayed_as_one(echo, tmp_path):
    """The first call of its kind is right: a replay of that alone would pass."""
    echo.fault = "second call"
    result = run("--fuzz", "3", "--no-edges", "--out", str(tmp_path / "bad"))
    assert "call 2 of its kind: " in result.output
    saved = sorted((tmp_path / "bad").glob("*.pt"))[0]
    again = CliRunner().invoke(app, ["verify", "--replay", str(saved)])
    assert again.exit_code == 1, again.output
    echo.fault = ""
    again = CliRunner().invoke(app, ["verify", "--replay", str(saved)])
    assert again.exit_code == 0, again.output


def test_a_failure_that_cannot_be_saved_is_told_all_the_same(echo, tmp_path):
    echo.fault = "no bias"
    (tmp_path / "file").write_text("")
    result = run("--fuzz", "20", "--out", str(tmp_path / "file" / "below"))
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "times its bound" in result.output
    assert "not saved: " in result.output


@pytest.mark.parametrize("content", [b"", b"PK", b"no call at all", None])
def test_a_file_that_holds_no_call_is_named(content, tmp_path):
    path = tmp_path / "x.pt"
    if content is None:
        torch.save({"kernel": "cublas/torch_cpu", "call": {"M": 1}}, path)
    else:
        path.write_bytes(content)
    result = CliRunner().invoke(app, ["verify", "--replay", str(path)])
    assert isinstance(result.exception, OperandError)
    assert "is no call that this version of 'tcgemm verify' saved" in str(result.exception)


def test_nothing_to_verify_is_no_success(echo):
    assert "nothing to verify" in str(run("--fuzz", "0", "--no-edges").exception)


@pytest.mark.parametrize(
    ("fault", "exact", "said"),
    [
        ("", True, ""),
        ("last bit", False, ""),
        ("last bit", True, "elements differ from the exact result"),
        ("writes beside", False, "1 elements beside out were changed"),
        ("writes A", False, "elements of A's buffer were changed"),
        ("last k", False, "times its bound"),
    ],
)
def test_a_fault_is_told_by_what_it_does(echo, fault, exact, said):
    echo.fault = fault
    call = DrawnCall(16, 24, 32, dtype_in="float16", dtype_out="float32", exact=exact)
    outcome = judge.check(dispatch.find("echo", "echo"), call, "cpu")
    assert (outcome.status == "ok") == (not said)
    assert said in outcome.reason


@pytest.mark.parametrize("added", ["bias", "c"])
def test_the_baseline_alone_may_round_its_product_before_it_adds(echo, added, monkeypatch):
    asked = {"bias": True} if added == "bias" else {"beta": 1.0, "c": "own"}
    call = DrawnCall(32, 32, 63, "bfloat16", "bfloat16", "float32", exact=True, **asked)

    def rounds_twice(row, call, made):
        made.out.copy_((made.a.float() @ made.b.float()).bfloat16())
        made.out.add_(made.bias if added == "bias" else made.c)

    monkeypatch.setattr(judge, "run", rounds_twice)
    row = dispatch.find("echo", "echo")
    assert judge.check(replace(row, rounds_product=True), call, "cpu").status == "ok"
    assert judge.check(row, call, "cpu").status == "wrong"


def test_bad_names(tmp_path):
    for arguments, words in (
        (["--backend", "x"], "unknown backend 'x'"),
        (["--kernel", "x"], "unknown kernel 'x'"),
        (["--dtype", "x"], "unknown dtype 'x'"),
        (["--replay", str(tmp_path / "x")], "is no file"),
    ):
        result = CliRunner().invoke(app, ["verify", *arguments])
        assert result.exit_code != 0
        assert words in str(result.exception)


@pytest.mark.parametrize("view", calls.VIEWS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("of", calls.BATCHES)
def test_operands_lie_as_they_say(view, batch, of):
    call = DrawnCall(5, 6, 7, a=Stored(view, 3, of), batch=batch, seed=1)
    made = judge.make(call)
    leading = {"shared": (), "first": tuple(n if not i else 1 for i, n in enumerate(batch))}
    assert made.a.shape == (*leading.get(of, batch), 5, 7)
    assert made.a.isfinite().all()
    offset = made.a.storage_offset() - judge.GUARD
    assert offset == 3
    buffer = made.buffers["A"]
    used = judge._elements(made.a.shape, made.a.stride(), made.a.storage_offset())
    assert not buffer[used].isnan().any()
    assert int(buffer.isnan().sum()) == buffer.numel() - len(used.unique())
    assert buffer[: judge.GUARD].isnan().all()
    assert buffer[-judge.GUARD :].isnan().all()
    if view in calls.OF_OUTPUTS:
        assert len(used.unique()) == made.a.numel()


@pytest.mark.parametrize("special", calls.SPECIALS)
def test_an_operand_without_elements_has_nothing_special(special):
    """K is 0, or M is: what is to be planted has no place."""
    for M, K in ((5, 0), (0, 5)):
        made = judge.make(DrawnCall(M, 7, K, special=special, beta=1.0, c="own"), "cpu")
        assert made.a.shape == (M, K)


def test_the_same_call_is_the_same_everywhere():
    call = DrawnCall(4, 5, 6, bias=True, scales="row", dtype_in="float8_e4m3fn", seed=3)
    first, second = judge.make(call), judge.make(call)
    assert torch.equal(first.a.float(), second.a.float())
    assert torch.equal(first.scale_a, second.scale_a)
    other = judge.make(replace(call, seed=4))
    assert not torch.equal(first.a.float(), other.a.float())


def test_a_call_is_plain_data():
    row = dispatch.find("cublas", "torch_cpu")
    choose = random.Random(1).choice
    for _ in range(50):
        call = calls.draw(row, choose, "cpu", 2**16)
        assert calls.from_dict(json.loads(json.dumps(asdict(call)))) == call
        assert call.work <= 2**16


def test_draws_reach_everything_that_a_row_does(echo):
    row = dispatch.find("echo", "echo")
    choose = random.Random(2).choice
    drawn = [calls.draw(row, choose, "cpu", 2**16) for _ in range(400)]
    for name, values in {
        "alpha": {0.0, 1.0, -1.0, 0.5, 2.0**-20},
        "c": {"", "own", "out", "row"},
        "bias": {True, False},
        "epilogue": {"", "relu"},
        "special": set(calls.SPECIALS),
        "exact": {True, False},
        "batch": {(), (2,), (3,), (2, 2)},
        "dtype_in": {"float16", "int8"},
    }.items():
        assert values <= {getattr(call, name) for call in drawn}, name
    assert set(calls.VIEWS) == {call.a.view for call in drawn}
    assert set(calls.OF_OUTPUTS) == {call.out.view for call in drawn}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_call_names_a_wmma_shape_that_its_types_have(device):
    """Of calls drawn with any of a kernel's shapes half were refused, and verified nothing."""
    row, choose = dispatch.named("cuda/wmma_types"), random.Random(3).choice
    drawn = [calls.draw(row, choose, device, 2**16) for _ in range(400)]
    drawn += list(calls.edge_calls(row, device))
    of = {(call.dtype_in, call.mma_shape) for call in drawn if call.mma_shape}
    for dtype in ("float16", "bfloat16", "int8", "uint8"):
        assert {s for d, s in of if d == dtype} == {"16x16x16", "32x8x16", "8x32x16"}
    assert {s for d, s in of if d == "float32"} == {"16x16x8"}
    assert {s for d, s in of if d == "float64"} == {"8x8x4"}


DYING = """
import os
from tcgemm.verify.judge import Outcome
def outcomes(chunk, device):
    if any(call.M == 7 for _, call in chunk):
        os._exit(9)
    return [(name, call, Outcome("ok")) for name, call in chunk]
"""


def test_a_kernel_that_kills_its_process_spoils_its_own_calls_alone(tmp_path, monkeypatch):
    from tcgemm.tools import verify

    (tmp_path / "dying_outcomes.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(verify, "_outcomes", importlib.import_module("dying_outcomes").outcomes)
    context = workers.forked()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    chunks = [[("a/kernel", DrawnCall(M, 8, 8))] for M in (1, 7, 2, 3)]
    done = [each for outcomes in verify._chunks_done(chunks, 2, "cpu") for each in outcomes]
    assert sorted(call.M for _, call, _ in done) == [1, 2, 3, 7]
    assert {call.M for _, call, outcome in done if outcome.status != "ok"} == {7}
    assert "its process died" in next(o.reason for _, call, o in done if call.M == 7)


SLOW = """
import time
from tcgemm.verify.judge import Outcome

def outcomes(chunk, device):
    time.sleep(max(call.M for _, call in chunk))
    return [(name, call, Outcome("ok")) for name, call in chunk]
"""


def test_workers_end_when_the_caller_has_seen_enough(tmp_path, monkeypatch):
    """As Ctrl-C and --seconds do: what a worker has in hand is not waited for."""
    from tcgemm.tools import verify

    (tmp_path / "slow_outcomes.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(verify, "_outcomes", importlib.import_module("slow_outcomes").outcomes)
    context = workers.forked()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: context)
    outcomes = verify._chunks_done(
        [[("a/kernel", DrawnCall(M, 8, 8))] for M in (0, 300, 300)], 2, "cpu"
    )
    assert [call.M for _, call, _ in next(outcomes)] == [0]
    began = time.perf_counter()
    outcomes.close()
    assert time.perf_counter() - began < 60
