"""Copies whose source is overwritten; warps that issue copies, and how often they synchronise."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")

SOURCE = Path(__file__).parent / "simulated" / "overwrites.cu"
STORES, SENDS, LANES, SYNCHRONISES, STORES_BYTES = 1, 2, 3, 4, 5
ORDERS = ("forward", "reverse", "random:3", "late:0", "late:4")


def simulate(kernel, cluster=1, number=0, order="forward"):
    c = torch.full((cluster, 4), float("nan"))
    plan = {"CLUSTER": cluster, "SPLITS": kernel, "GROUPS": number}
    a, b = torch.ones(cluster, 1), torch.ones(1, 4)
    report = simulator.simulate(SOURCE, a, b, c, plan=plan, order=order, check=True, timeout_s=30)
    return [f for f in report.findings if f.kind != "not written"], c


def test_a_stores_source_is_left_alone_until_its_issuer_has_waited():
    (found,), _ = simulate(STORES, number=0)
    assert found.kind == "race"
    assert "which a copy issued by block (0, 0, 0), thread (0, 0, 0)" in found.message
    found, c = simulate(STORES, number=1)
    assert (found, c.tolist()) == ([], [[1.0] * 4])


def test_a_copy_of_bytes_is_read_and_written_as_late_as_it_may():
    found, c = simulate(STORES_BYTES, number=1)
    assert (found, c.tolist()) == ([], [[1.0] * 4])
    (found,), c = simulate(STORES_BYTES, number=0)
    assert found.kind == "race"
    assert c.tolist() == [[7.0, 1.0, 1.0, 1.0]]
    (found,), _ = simulate(STORES_BYTES, number=2)
    assert "call fence_proxy_async() after the writes" in found.message
    found, _ = simulate(STORES_BYTES, number=3)
    assert any("not 20 bytes" in each.message for each in found)


@pytest.mark.spread(2, "order", "writer", "cluster")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("writer", [0, 10], ids=["issuer", "another"])
@pytest.mark.parametrize("cluster", [2, 3, 5])
def test_every_copy_of_a_source_is_awaited_before_it_is_written(cluster, writer, order):
    for words in range(cluster):
        found, _ = simulate(SENDS, cluster, words + writer, order)
        if words == cluster - 1:
            assert not found
        else:
            assert [f.kind for f in found] == ["race"], words
            assert "writes 4 bytes of shared memory" in found[0].message


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_issue_of_a_copy_orders_no_lanes(cluster):
    """In reverse lane 1 runs first: only then has it written when lane 0 reads."""
    (found,), _ = simulate(LANES, cluster, order="reverse")
    assert found.kind == "race"
    assert "thread (1, 0, 0)" in found.message
    assert simulate(LANES, cluster, number=1, order="reverse")[0] == []


@pytest.mark.parametrize(("cluster", "most"), [(1, 2**21 - 2), (2, 2**18 - 2)])
def test_a_check_ends_where_its_clocks_do(cluster, most):
    assert simulate(SYNCHRONISES, cluster, most)[0] == []
    found, _ = simulate(SYNCHRONISES, cluster, most + 1)
    assert [f.fatal for f in found] == [True]
    assert f"its warp has synchronised {most + 1:,} times" in found[0].message
