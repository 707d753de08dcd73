"""The records of tests/records.py: some made anew in every run, and when one is out of date."""

from __future__ import annotations

import datetime
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import records
from tcgemm.cuda_ref.build import toolchain

needs_nvcc = pytest.mark.skipif(
    toolchain.find_nvcc() is None or toolchain.find_cuobjdump() is None,
    reason="needs nvcc and cuobjdump",
)
Request = records.compile_only.Request
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "NUM_WARPS": 4}
DEEP = {**TILE, "GROUP_M": 8, "NUM_STAGES": 3}


def drawn(prefix, number, share=1.0):
    """Some records of a compiler, others every day, in an order that the day fixes.

    share: of the records, those with the fewest kernels, which take least to compile.
    """
    all_kept = [each for each in records.kept() if each[0].startswith(prefix)]
    assert all_kept, f"no records of {prefix}: run `make records`"
    all_kept.sort(key=lambda each: (len(str(each[2]["made"])), each[1]))
    day = datetime.date.today().toordinal()
    return random.Random(day).sample(all_kept[: int(share * len(all_kept))], number)


def test_drawn_records_are_what_triton_makes(thorough):
    chosen = drawn("triton-", 2 if thorough else 1)
    requests = [records.triton_request(key) for _, key, _ in chosen]
    digests = records.triton_digests(requests)
    compiler = records.triton_compiler()
    pairs = [
        (request, entry["made"])
        for request, digest, (_, _, entry) in zip(requests, digests, chosen, strict=True)
        if (entry["made_from"], entry["compiler"]) == (digest, compiler)
    ]
    if not pairs:
        pytest.skip("the drawn records are out of date: the tests that need them make them anew")
    made = records.make_triton([request for request, _ in pairs], fresh=True)
    for (request, kept), now in zip(pairs, made, strict=True):
        assert now == kept, f"the record of {request} is wrong: run `make records`"


@needs_nvcc
def test_a_drawn_record_is_what_nvcc_makes(thorough):
    ((_, key, entry),) = drawn("cuda-", 1, 1.0 if thorough else 0.25)
    if records.cuda_facts(key) != {name: entry[name] for name in ("compiler", "made_from")}:
        pytest.skip("the drawn record is out of date: the test that needs it makes it anew")
    assert records.make_cuda(key) == entry["made"], f"the record of {key} is wrong"


def test_a_key_names_its_request():
    for request in (
        Request("naive", TILE),
        Request("naive", TILE, layout="nnt", capability=(8, 0), M=100, bias=True, batch=3),
    ):
        assert records.triton_request(records.triton_key(request)) == request


def test_what_is_asked_and_for_what_is_in_the_digest():
    asked = [
        Request("naive", TILE),
        Request("naive", {**TILE, "NUM_WARPS": 8}),
        Request("naive", TILE, dtype_in="float16"),
        Request("naive", TILE, dtype_out="float32"),
        Request("naive", TILE, layout="nt"),
        Request("naive", TILE, capability=(8, 0)),
        Request("naive", TILE, K=4097),
        Request("grouped", {**TILE, "GROUP_M": 8}),
        Request("pipelined", DEEP),
        Request("fused", DEEP, bias=True),
        Request("fused", DEEP, bias=True, epilogue="relu"),
    ]
    fuses_nothing = Request("naive", TILE, epilogue="relu")
    *digests, no_launch = records.triton_digests([*asked, fuses_nothing])
    assert len(set(digests)) == len(asked)
    assert all(digests)
    assert no_launch == ""
    facts = {"compiler": "", "made_from": no_launch}
    assert records.current("triton-naive", "any", facts) is None


KERNEL = '''
import triton
import triton.language as tl


@triton.jit
def helper(x):
    return x + 1


@triton.jit
def kernel(pointer):
    """Writes a number."""
    tl.store(pointer, helper(1))
'''
CHANGES = {
    "a comment": KERNEL.replace("    return", "    # The next number.\n    return"),
    "a docstring": KERNEL.replace("Writes a number", "Stores two"),
    "another line": KERNEL.replace("import triton\n", "import triton\n\n\n", 1),
    "the kernel": KERNEL.replace("helper(1)", "helper(2)"),
    "what it calls": KERNEL.replace("x + 1", "x + 2"),
}


def test_comments_are_not_in_tritons_digest_and_what_is_called_is(tmp_path):
    for name, text in {"same": KERNEL, **CHANGES}.items():
        (tmp_path / f"{name.replace(' ', '_')}.py").write_text(text)
    program = (
        "import triton_digests\n"
        "from importlib import import_module\n"
        "triton_digests.leave_out_comments_and_lines()\n"
        f"for name in {['same', *(name.replace(' ', '_') for name in CHANGES)]}:\n"
        "    print(import_module(name).kernel.cache_key)\n"
    )
    paths = os.pathsep.join((str(Path(__file__).parent), str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    same, *changed = done.stdout.split()
    assert [other == same for other in changed] == [True, True, True, False, False]


def test_comments_are_not_in_cudas_digest_and_headers_are(tmp_path):
    source, header = tmp_path / "rungs/rung.cu", tmp_path / "csrc/tile.cuh"
    source.parent.mkdir()
    header.parent.mkdir()

    def digest(cu='#include "tile.cuh"\nint a = TILE;', cuh="#define TILE 1", **given):
        source.write_text(cu)
        header.write_text(cuh)
        asked = {"target": "sm_80", "defines": (), **given}
        return records.cuda_digest("rung", root=tmp_path, **asked)

    same = digest()
    assert digest(cuh="// A tile.\n#define TILE   1 /* of\none */") == same
    assert digest(cuh="#define TILE 2") != same
    assert digest(cu='#include "tile.cuh"\nint a = TILE + 1;') != same
    assert digest(target="sm_90a") != same
    assert digest(defines=("-DTILE=3",)) != same


def test_where_a_header_lies_is_not_in_cudas_digest(tmp_path):
    def digest(name, files):
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        return records.cuda_digest("rung", "sm_80", (), tmp_path / name)

    once = "#pragma once\n"
    flat = {
        "rungs/rung.cu": '#include "a.cuh"\n#include "b.cuh"\nint c;',
        "csrc/a.cuh": once + "int a;",
        "csrc/b.cuh": once + '#include "a.cuh"\nint b;',
    }
    moved = {
        "shapes/rung.cu": '#include "tile/b.cuh"\nint c;',
        "csrc/tile/of_a.cuh": once + "int a;",
        "csrc/tile/b.cuh": once + '#include "of_a.cuh"\nint b;',
    }
    assert digest("flat", flat) == digest("moved", moved)
    changed = {**moved, "csrc/tile/of_a.cuh": once + "int a2;"}
    assert digest("flat", flat) != digest("changed", changed)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ('a = "// no comment"; // one', 'a = "// no comment";'),
        ('a = "\\"// none"; /* one\n */ b', 'a = "\\"// none"; b'),
        ("a /* b */ c\nd // e", "a c d"),
    ],
)
def test_what_is_left_without_comments(source, left):
    assert " ".join(records.without_comments(source).split()) == left


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """A folder of records that is empty, as are those of this process."""
    monkeypatch.setattr(records, "FOLDER", tmp_path / "compiled")
    monkeypatch.setattr(records, "_made_here", {})
    records.read.cache_clear()
    yield tmp_path / "compiled"
    records.read.cache_clear()


def read_by_another_process(monkeypatch):
    monkeypatch.setattr(records, "_made_here", {})
    records.read.cache_clear()


FACTS = {"compiler": "nvcc 13.0", "made_from": "0123456789abcdef"}


def test_a_record_is_trusted_for_what_it_was_made_from_only(empty, monkeypatch):
    value = {"serialized": False, "kernels": {"_Z1a": {"sass": {"HMMA": 2}}, "_Z1b": {}}}
    records.keep("cuda-rung", "rung sm_80", FACTS, value)
    records.keep("cuda-rung", "rung sm_75", FACTS, {"serialized": True, "kernels": {}})
    read_by_another_process(monkeypatch)
    assert [key for _, key, _ in records.kept()] == ["rung sm_75", "rung sm_80"]
    assert records.current("cuda-rung", "rung sm_80", FACTS) == value
    assert records.current("cuda-rung", "rung sm_90a", FACTS) is None
    for changed in ({"compiler": "nvcc 13.1"}, {"made_from": "another"}):
        assert records.current("cuda-rung", "rung sm_80", {**FACTS, **changed}) is None
    monkeypatch.setattr(records, "RENEW", True)
    assert records.current("cuda-rung", "rung sm_80", FACTS) is None


def test_what_was_made_is_asked_for_once_a_process(empty, monkeypatch):
    monkeypatch.setattr(records, "RENEW", True)
    records.keep("cuda-rung", "rung sm_80", FACTS, {"kernels": {}})
    assert records.current("cuda-rung", "rung sm_80", FACTS) == {"kernels": {}}


def test_a_stale_record_is_compiled_and_replaced(empty, monkeypatch):
    def make(requests, fresh=False):
        value = dict.fromkeys(("registers", "spill_bytes", "shared_bytes"), 7)
        made.append(requests)
        return [{**value, "serialized": False, "counts": {"HMMA": 4}, "log": ""} for _ in requests]

    made: list = []
    monkeypatch.setattr(records, "make_triton", make)
    request = Request("naive", TILE)
    (built,) = records.triton([request])
    assert (built.registers, built.counts["HMMA"], built.counts["FFMA"]) == (7, 4, 0)
    read_by_another_process(monkeypatch)
    assert records.triton([request]) == [built]
    assert made == [[request]], "a current record was compiled again"
    monkeypatch.setattr(records, "triton_digests", lambda requests: ["other"] * len(requests))
    read_by_another_process(monkeypatch)
    assert records.triton([request]) == [built]
    assert made == [[request], [request]]
    read_by_another_process(monkeypatch)
    assert [entry["made_from"] for _, _, entry in records.kept()] == ["other"]


def test_what_no_test_asked_for_is_made_by_its_key(empty, tmp_path, monkeypatch, capsys):
    """As `make records` does with what only `make test-all` asks for."""
    requests = [Request("naive", {**TILE, "NUM_WARPS": warps}) for warps in (1, 2, 4, 8)]
    keys = [records.triton_key(request) for request in requests]
    old = {"compiler": "old", "made_from": "old", "made": {}}
    before = tmp_path / "before"
    before.mkdir()
    (before / "triton-naive.json").write_text(json.dumps(dict.fromkeys(keys, old)))
    cuda_keys = ["naive sm_80", "naive sm_90a -DTCGEMM_IN=0", "gone sm_80"]
    (before / "cuda-naive.json").write_text(json.dumps(dict.fromkeys(cuda_keys, old)))
    made = []

    def make_triton(requests, fresh=False):
        if any(request.plan["NUM_WARPS"] == 8 for request in requests):
            raise RuntimeError("it spills")
        made.extend(map(records.triton_key, requests))
        return [{"registers": 1, "spill_bytes": 0, "shared_bytes": 0, "serialized": False,
                 "counts": {}, "log": ""} for _ in requests]  # fmt: skip

    def make_cuda(key):
        made.append(key)
        return {"serialized": False, "kernels": {}}

    monkeypatch.setattr(records, "make_triton", make_triton)
    monkeypatch.setattr(records, "make_cuda", make_cuda)
    monkeypatch.setattr(records, "triton_digests", lambda requests: ["new"] * len(requests))
    monkeypatch.setattr(records, "RENEW", True)
    records.triton([requests[0]])
    records.cuda("naive", "sm_80")
    assert sorted(made) == sorted([keys[0], "naive sm_80"])
    read_by_another_process(monkeypatch)
    failed = records.make_left(before)
    assert sorted(failed) == sorted([keys[3], "gone sm_80"])
    assert sorted(made) == sorted([*keys[:3], *cuda_keys[:2]]), "each once"
    read_by_another_process(monkeypatch)
    assert sorted(key for _, key, _ in records.kept()) == sorted(made)
    assert "gone sm_80 is left out: no rung 'gone'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_no_failure(empty, capsys):
    empty.parent.joinpath("compiled").write_text("a file")
    records.keep("cuda-rung", "rung sm_80", FACTS, {"kernels": {}})
    assert "cannot be kept" in capsys.readouterr().err
    assert records.current("cuda-rung", "rung sm_80", FACTS) == {"kernels": {}}


def test_an_instruction_that_records_do_not_count_is_an_error():
    counts = records.Counts({"HMMA": 2})
    assert (counts["HMMA"], counts["FFMA"]) == (2, 0)
    with pytest.raises(KeyError, match="FADD: add it to OPCODES"):
        counts["FADD"]
