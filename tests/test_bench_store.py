"""Rows survive crashes; folders that are not ours are refused before anything is measured."""

import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from disks import no_file_may_pass

from tcgemm.bench import environment, store
from tcgemm.errors import ResultsError

FACTS = {"gpu_slug": "nvidia-h200", "date": "2026-01-01"}


def open_store(folder, run="r1", **facts):
    return store.Store(folder, run, FACTS | facts)


def filled(folder, rows=2):
    s = open_store(folder)
    for i in range(rows):
        s.append({"backend": "triton", "kernel": f"k{i}", "M": 8, "ms_p50": 1 / 3})
    s.close()
    return folder / store.RESULTS


def test_a_row_comes_back_as_it_was_written(tmp_path):
    s = open_store(tmp_path / "new" / "folder")
    s.append(
        {"kernel": "k", "reason": 'a "b", c\nd', "M": 128, "ms_p50": 0.1234567890, "power_w": None}
    )
    (row,) = store.read(tmp_path / "new" / "folder")  # flushed: readable before close
    s.close()
    assert list(row) == list(store.COLUMNS)
    assert (row["run"], row["kernel"], row["M"]) == ("r1", "k", "128")
    assert row["reason"] == 'a "b", c d'
    assert row["ms_p50"] == "0.123457"
    assert row["power_w"] == row["config"] == ""


@pytest.mark.parametrize(
    ("cells", "kernel"),
    [
        ({"dtype_in": "bfloat16", "compute": "float32"}, "pipelined"),
        ({"dtype_in": "bfloat16", "compute": "float32", "fused": "bias gelu"}, "fused"),
        ({"dtype_in": "float16", "compute": "float16"}, "fused"),
        ({"dtype_in": "int8", "compute": "int32"}, "fused"),
        ({"dtype_in": "int8", "compute": "int32", "status": "unsupported"}, "pipelined"),
        ({"dtype_in": "int8", "compute": "int32", "backend": "cuda"}, "pipelined"),
    ],
)
def test_a_row_is_read_by_the_name_that_its_machine_code_has_now(cells, kernel, tmp_path):
    s = open_store(tmp_path)
    s.append({"backend": "triton", "kernel": "pipelined", "status": "ok", **cells})
    s.close()
    assert [row["kernel"] for row in store.read(tmp_path)] == [kernel]
    assert ",pipelined," in (tmp_path / store.RESULTS).read_text(), "what was measured stays"


def test_an_unknown_column_is_a_mistake_of_ours(tmp_path):
    with pytest.raises(ValueError, match="tflops"):
        open_store(tmp_path).append({"tflops": 700.0})


def test_a_second_run_appends_and_keeps_both_environments(tmp_path):
    filled(tmp_path)
    s = open_store(tmp_path, "r2", date="2026-01-02")
    s.append({"kernel": "later"})
    s.update(throttle_reasons_seen=["software power cap"])
    s.close()
    assert [row["run"] for row in store.read(tmp_path)] == ["r1", "r1", "r2"]
    runs = store.read_environment(tmp_path)
    assert list(runs) == ["r1", "r2"]
    assert runs["r2"]["throttle_reasons_seen"] == ["software power cap"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["environment.json", "results.csv"]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_truncated_last_line_is_left_out_and_mended(tmp_path, caplog, cut):
    path = filled(tmp_path, rows=3)
    path.write_bytes(path.read_bytes()[:-cut])
    with caplog.at_level(logging.WARNING):
        assert [row["kernel"] for row in store.read(tmp_path)] == ["k0", "k1"]
    assert "incomplete" in caplog.text
    s = open_store(tmp_path, "r2")
    s.append({"kernel": "later"})
    s.close()
    assert [row["kernel"] for row in store.read(tmp_path)] == ["k0", "k1", "later"]


def test_a_truncated_header_is_written_anew(tmp_path):
    path = filled(tmp_path, rows=0)
    path.write_bytes(path.read_bytes()[:20])
    assert store.read(tmp_path) == []
    s = open_store(tmp_path)
    s.append({"kernel": "k"})
    s.close()
    assert [row["kernel"] for row in store.read(tmp_path)] == ["k"]


def test_another_schema_is_refused_by_the_columns_that_differ(tmp_path):
    path = filled(tmp_path)
    path.write_text(path.read_text().replace("ms_p50", "time_us"))
    for use in (lambda: store.read(tmp_path), lambda: open_store(tmp_path)):
        with pytest.raises(ResultsError, match="missing ms_p50; unknown time_us"):
            use()


def test_columns_in_another_order_are_another_schema(tmp_path):
    path = filled(tmp_path)
    path.write_text(path.read_text().replace("M,N,K", "K,N,M"))
    with pytest.raises(ResultsError, match="another order"):
        store.read(tmp_path)


def test_a_line_of_another_length_is_named(tmp_path):
    path = filled(tmp_path)
    path.write_text(path.read_text() + "1,2,3\n")
    with pytest.raises(ResultsError, match="line 4 has 3 cells"):
        store.read(tmp_path)


def test_what_is_no_csv_is_refused(tmp_path):
    (tmp_path / store.RESULTS).write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(ResultsError, match="not a CSV"):
        store.read(tmp_path)


def test_a_missing_file_says_what_writes_it(tmp_path):
    with pytest.raises(ResultsError, match="tcgemm bench"):
        store.read(tmp_path)
    assert store.read_environment(tmp_path) == {}


def test_a_foreign_folder_is_refused_and_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ResultsError, match="other files"):
        open_store(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_results_of_another_gpu_are_refused_and_untouched(tmp_path):
    path = filled(tmp_path)
    before = path.read_bytes(), (tmp_path / store.ENVIRONMENT).read_bytes()
    with pytest.raises(ResultsError, match=r"nvidia-h200 and this is nvidia-a100"):
        open_store(tmp_path, gpu_slug="nvidia-a100-80gb-sxm")
    assert before == (path.read_bytes(), (tmp_path / store.ENVIRONMENT).read_bytes())


def test_a_report_beside_the_results_is_no_foreign_folder(tmp_path):
    filled(tmp_path)
    (tmp_path / "index.html").write_text("<html>")
    open_store(tmp_path, "r2").close()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("")
    for out in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(ResultsError, match="--out"):
            open_store(out)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ResultsError, match="cannot be written"):
            open_store(tmp_path / "new")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 1}'])
def test_a_broken_environment_is_named(tmp_path, text):
    (tmp_path / store.ENVIRONMENT).write_text(text)
    with pytest.raises(ResultsError, match=r"environment\.json"):
        open_store(tmp_path)


def test_the_environment_can_be_collected_anywhere(monkeypatch):
    facts = environment.collect(["/somewhere/bin/tcgemm", "bench"])
    json.dumps(facts)
    for name in ("date", "torch", "triton", "cuda", "cublas", "nvcc", "commit", "precision", "gpu"):
        assert name in facts
    assert facts["command"] == ["tcgemm", "bench"]
    assert facts["gpu_slug"] == environment.slug()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    bare = environment.collect()
    assert bare["commit"] is None
    assert bare["nvcc"] is None or "wheel" in bare["nvcc"]


def test_run_ids_differ():
    assert len({environment.run_id() for _ in range(20)}) == 20


def test_runs_that_begin_and_end_together_lose_nothing(tmp_path):
    together = 8
    barrier = threading.Barrier(together)

    def one_run(number):
        results = store.Store(tmp_path, f"run{number}", {"gpu_slug": "g"})
        barrier.wait()
        for row in range(5):
            results.append({"kernel": f"k{number}", "seed": row})
            results.update(rows=row)
        results.close()

    with ThreadPoolExecutor(together) as threads:
        list(threads.map(one_run, range(together)))
    environment = store.read_environment(tmp_path)
    assert sorted(environment) == [f"run{number}" for number in range(together)]
    assert {facts["rows"] for facts in environment.values()} == {4}
    assert len(store.read(tmp_path)) == 5 * together


def test_processes_that_begin_together_lose_no_entry(tmp_path):
    code = (
        "import sys; from tcgemm.bench import store\n"
        "sys.stdin.readline()\n"
        "for i in range(20):\n"
        "    store.Store(sys.argv[1], f'{sys.argv[2]}-{i}', {'gpu_slug': 'g'}).close()\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "o"), str(number)], stdin=subprocess.PIPE
        )
        for number in range(3)
    ]
    for child in children:
        child.stdin.write(b"go\n")
        child.stdin.close()
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert len(store.read_environment(tmp_path / "o")) == 60


def test_a_row_on_a_full_disk_is_written_not_at_all(tmp_path):
    results = store.Store(tmp_path, "r", {"gpu_slug": "g"})
    results.append({"kernel": "whole"})
    before = (tmp_path / store.RESULTS).read_bytes()
    with no_file_may_pass(len(before) + 20), pytest.raises(ResultsError, match="make room"):
        results.append({"kernel": "cut", "reason": "x" * 100})
    assert (tmp_path / store.RESULTS).read_bytes() == before
    environment = (tmp_path / store.ENVIRONMENT).read_bytes()
    with no_file_may_pass(10), pytest.raises(ResultsError, match=r"environment\.json"):
        results.update(more="facts")
    assert (tmp_path / store.ENVIRONMENT).read_bytes() == environment
    assert {p.name for p in tmp_path.iterdir()} == {store.RESULTS, store.ENVIRONMENT}
    results.append({"kernel": "whole again"})
    results.close()
    assert [row["kernel"] for row in store.read(tmp_path)] == ["whole", "whole again"]


def test_an_environment_of_great_depth_is_refused(tmp_path):
    (tmp_path / store.ENVIRONMENT).write_text('{"r": ' + '{"a": ' * 100_000 + "1" + "}" * 100_001)
    with pytest.raises(ResultsError, match="nested too deep"):
        store.read_environment(tmp_path)


def of_before(path, end="\n", columns=1):
    """The file as it was before so many of the last columns were added."""
    lines = [line.rsplit(",", columns)[0] for line in path.read_text().splitlines()]
    path.write_bytes((end.join(lines) + end).encode())


def test_stored_names_of_kernels_stay_what_they_were(tmp_path):
    """They are facts of their run; only who reads them sees the names of now."""
    results = open_store(tmp_path)
    cells = {"dtype_in": "int8", "compute": "int32", "status": "ok"}
    results.append({"backend": "triton", "kernel": "pipelined", **cells})
    results.close()
    path = tmp_path / store.RESULTS
    of_before(path)
    open_store(tmp_path, "later").close()
    assert ",triton,pipelined," in path.read_text()
    assert store.read(tmp_path)[0]["kernel"] == "fused"


@pytest.mark.parametrize("away", ["moved", "replaced"])
def test_rows_are_not_lost_when_the_file_is_moved_away_meanwhile(tmp_path, away):
    results = open_store(tmp_path)
    results.append({"kernel": "first"})
    path = tmp_path / store.RESULTS
    text = path.read_bytes()
    path.rename(tmp_path / "kept.csv")
    if away == "replaced":
        path.write_bytes(text)
    results.append({"kernel": "second"})
    results.append({"kernel": "third"})
    results.close()
    kernels = [row["kernel"] for row in store.read(tmp_path)]
    assert kernels == ["first"] * (away == "replaced") + ["second", "third"]


def test_a_folder_that_is_gone_is_named(tmp_path):
    results = open_store(tmp_path / "o")
    (tmp_path / "o").rename(tmp_path / "p")
    with pytest.raises(ResultsError, match="cannot be written"):
        results.append({"kernel": "k"})
    results.close()


@pytest.mark.parametrize("columns", [1, 2], ids=["batch", "among and batch"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["as written", "as git or an editor may"])
def test_a_file_of_before_a_later_column_is_read_and_goes_on(tmp_path, end, columns):
    """Rows that are appended have the header's columns, whatever lines end with."""
    path = filled(tmp_path)
    before = [{**row, "batch": "1"} for row in store.read(tmp_path)]
    assert list(store.COLUMNS)[-2:] == list(store.LATER) == ["among", "batch"]
    of_before(path, end, columns)
    assert store.read(tmp_path) == before
    results = open_store(tmp_path, "later")
    results.append({"kernel": "new", "among": "graph"})
    results.close()
    assert store.read(tmp_path)[:-1] == before
    assert store.read(tmp_path)[-1]["among"] == "graph"
    assert path.read_text().splitlines()[0] == ",".join(store.COLUMNS)
