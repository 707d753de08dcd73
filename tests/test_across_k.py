"""wgmma_types with an operand of float32 across K, read into registers as it lies."""

import csv
import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tcgemm.cuda_ref import simulator
from tcgemm.cuda_ref.planning import wgmma_types_model as model

import tcgemm
from tcgemm import accuracy
from tcgemm.dispatch import choose, find
from tcgemm.problem import Fusion, Problem

ROOT = Path(__file__).parents[1]
COMPUTES = ("tf32", "tf32x3")
TILES = {
    "tf32": [(64, 128, 0), (128, 128, 0), (128, 256, 0)],
    "tf32x3": [(64, 128, 0), (128, 128, 0), (128, 128, 1)],
}
CASES = [(compute, tile) for compute in COMPUTES for tile in TILES[compute]]
LAYOUTS = [("nn", model.B_ACROSS), ("tt", model.A_ACROSS), ("tn", 1), ("tn", 2)]
"""With what of them is read across K; of tn the other one is copied."""


def operand(rows, columns, transposed, make=torch.randn):
    """In rows of whole 16 bytes, with NaN between them."""
    if transposed:
        return operand(columns, rows, False, make).mT
    buffer = torch.full((rows, -(-columns // 4) * 4 + 4), torch.nan)
    buffer[:, :columns] = make((rows, columns))
    return buffer[:, :columns]


def small_integers(size):
    return torch.randint(-8, 9, size).float()


def plan_of(tile, across, **more):
    named = dict(zip(("BLOCK_M", "BLOCK_N", "REPACK"), tile, strict=True))
    return {**named, "ACROSS": across, **more}


def product(a, b, compute, plan, out=None, order="forward", check=False, **fused):
    out = accuracy.poisoned((*a.shape[:-1], b.shape[-1]), a.dtype, "cpu") if out is None else out
    report = simulator.simulate(
        simulator.source_of("wgmma_types"), a, b, out, plan=plan, order=order, check=check,
        fusion=Fusion(compute=compute, **fused),
    )  # fmt: skip
    assert not report.findings, [str(finding) for finding in report.findings]
    return out


@pytest.mark.spread(3, "layout", "case")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_both_checks_at_edges(case, layout):
    """A tile and less, tails of M, N and K, one step along K and rings that wrap."""
    (compute, tile), (letters, across) = case, layout
    for M, N, K in ((64, 128, 96), (133, 261, 101), (3, 9, 1), (200, 37, 430)):
        for make, same in ((small_integers, torch.equal), (torch.randn, None)):
            a = operand(M, K, letters[0] == "t", make)
            b = operand(K, N, letters[1] == "t", make)
            c = product(a, b, compute, plan_of(tile, across))
            if same:
                assert same(c, (a.double() @ b.double()).float())
            else:
                assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_c_by_columns_and_in_any_view(compute):
    """By TMA as chunks of either kind, and by threads where rows are no whole 16 bytes."""
    a, b = operand(70, 90, False, small_integers), operand(90, 132, False, small_integers)
    at, exact, around = (
        operand(70, 90, True),
        (a.double() @ b.double()).float(),
        torch.zeros(90, 301),
    )
    at.copy_(a)
    columns = torch.full((132, 70), torch.nan).mT
    for out in (None, columns, around[7:77, 2:266:2], around[7:77, 1:133]):
        by_rows = out is None or out.stride(0) != 1
        plan = plan_of(TILES[compute][1], model.B_ACROSS if by_rows else model.A_ACROSS)
        assert torch.equal(product(a, b, compute, plan, out), exact)
        b_along = operand(90, 132, True)
        b_along.copy_(b)
        plan["ACROSS"] = 3 - plan["ACROSS"]
        assert torch.equal(product(at, b_along, compute, plan, out), exact)
    around[7:77, 2:266:2] = around[7:77, 1:133] = 0
    assert not around.any()


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_fused(compute, parts):
    torch.manual_seed(0)
    a, b = operand(70, 300, False, small_integers), operand(300, 132, False, small_integers)
    c, bias = small_integers((70, 132)), small_integers((132,))
    exact = (2 * a.double() @ b.double() - c.double() + bias.double()).relu().float()
    plan = plan_of(TILES[compute][1], model.B_ACROSS, SPLITS=parts)
    fused = {"alpha": 2.0, "beta": -1.0, "bias": bias, "epilogue": "relu"}
    assert torch.equal(product(a, b, compute, plan, c.clone(), c=c, **fused), exact)
    scale_a, scale_b = 2.0 ** torch.randint(-2, 3, (70,)), 2.0 ** torch.randint(-2, 3, (132,))
    scaled = scale_a[:, None].double() * scale_b.double() * (a.double() @ b.double())
    scales = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    assert torch.equal(product(a, b, compute, plan, **scales), (scaled + bias).float())


@pytest.mark.parametrize("compute", COMPUTES)
def test_one_row_and_one_column(compute):
    for M, N in ((1, 132), (132, 1), (1, 1)):
        a, b = operand(M, 90, False, small_integers), operand(90, N, False, small_integers)
        bias = small_integers((2 * N,))[::2]
        # A column of C lies as a row, of whose product B is A.
        across = model.A_ACROSS if M > N else model.B_ACROSS
        c = product(a, b, compute, plan_of(TILES[compute][0], across), bias=bias)
        assert torch.equal(c, (a.double() @ b.double() + bias).float())


def test_sums_of_parts_keep_within_the_bound_of_memory(monkeypatch):
    """They lie by rows of C, whose padding counts: of eight rows of one column it is four times."""
    monkeypatch.setenv("TCGEMM_WORKSPACE_MIB", "1")
    for M, N in ((1, 1000), (8, 1), (300, 3), (2, 2000)):
        for compute in COMPUTES:
            asked = Problem.stored(
                M, N, 65536, "float32", "float32", "nn", compute=compute, capability=(9, 0)
            )
            plan = find("cuda", "wgmma_types").plan(asked)
            by_rows = model.product_of(asked)
            rows, columns = by_rows.a.rows, by_rows.b.rows
            sums = plan.get("SPLITS", 0) * rows * -(-columns // 4) * 16
            assert sums + 8 * plan.get("REPACK", 0) * 65536 * min(M, N) <= 2**20 or not sums


@pytest.mark.parametrize("compute", COMPUTES)
def test_k_in_parts(compute):
    """Sums of the parts lie by rows of C, whichever way the tile was computed."""
    a, b = operand(70, 411, False, small_integers), operand(411, 133, False, small_integers)
    exact = (a.double() @ b.double()).float()
    for tile in TILES[compute]:
        plan = plan_of(tile, model.B_ACROSS, SPLITS=4)
        assert torch.equal(product(a, b, compute, plan), exact)
    columns = torch.full((133, 70), torch.nan).mT
    plan["ACROSS"] = model.A_ACROSS  # B is A of what is computed by the rows of such a C
    assert torch.equal(product(a, b, compute, plan, columns), exact)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_batch_may_share_an_operand(compute):
    for shared_a, shared_b in ((False, False), (True, False), (False, True)):
        a = small_integers((1 if shared_a else 3, 40, 72)).expand(3, 40, 72)
        b = small_integers((1 if shared_b else 3, 72, 52)).expand(3, 72, 52)
        c = product(a, b, compute, plan_of(TILES[compute][1], model.B_ACROSS))
        assert torch.equal(c, (a.double() @ b.double()).float())


@pytest.mark.spread(2, "order")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("order", ["forward", "random:5", "late:0", "late:4"])
def test_nothing_races(case, order):
    """Rings that wrap, several tiles of a block, with and without pairs of blocks that share B."""
    compute, tile = case
    a, b = operand(270, 330, False, small_integers), operand(330, 520, False, small_integers)
    for cluster in (1, 2):
        plan = plan_of(tile, model.B_ACROSS, CLUSTER=cluster)
        c = product(a, b, compute, plan, order=order, check=True)
        assert torch.equal(c, (a.double() @ b.double()).float())


def test_inf_and_nan_of_either_operand():
    torch.manual_seed(0)
    a, b = operand(40, 72, False), operand(72, 48, False)
    for i, value in enumerate((torch.inf, -torch.inf, torch.nan)):
        a[7 + 11 * i, 5 * i] = b[3 + 13 * i, 9 + i] = value
    a[30, 33] = b[33, 21] = torch.inf
    exact = (a.double() @ b.double()).float()
    for tile in TILES["tf32x3"]:
        c = product(a, b, "tf32x3", plan_of(tile, model.B_ACROSS))
        torch.testing.assert_close(c, exact, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_copy_along_k_gives_the_same_bits(case):
    compute, tile = case
    torch.manual_seed(0)
    a, b = operand(200, 330, True), operand(330, 140, True)
    copied, read = (product(a, b, compute, plan_of(tile, across)) for across in (0, 1))
    assert torch.equal(copied, read)


@pytest.mark.parametrize("compute", COMPUTES)
def test_an_operand_that_cannot_be_read_so_is_an_error(compute):
    """Never a wrong result: rows of no whole 16 bytes, and an operand that lies along K."""
    for a, b in ((torch.ones(8, 64), torch.ones(64, 9)), (torch.ones(8, 64), torch.ones(9, 64).mT)):
        with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
            product(a, b, compute, plan_of(TILES[compute][0], model.B_ACROSS))
    with pytest.raises(simulator.SimulationError, match="the launcher refuses it"):
        product(
            torch.ones(8, 64), torch.ones(64, 8), compute, plan_of((48, 128, 0), model.B_ACROSS)
        )


def taken(layout, M=1024, N=1024, K=1024, compute="tf32", dtype="float32", **more):
    asked = Problem.stored(M, N, K, dtype, dtype, layout, compute=compute, capability=(9, 0))
    return model.chosen_for(replace(asked, **more)).lies


@pytest.mark.parametrize("compute", COMPUTES)
def test_what_is_read_across_k(compute):
    assert taken("nt", compute=compute) == model.ALONG, "nothing lies across K"
    assert taken("nn", 256, 4096, compute=compute) == model.B_ACROSS
    assert taken("tt", 4096, 256, compute=compute) == model.A_ACROSS
    assert taken("tn", 256, 4096, compute=compute) == model.B_ACROSS, "the smaller one is copied"
    assert taken("tn", 4096, 256, compute=compute) == model.A_ACROSS
    columns = {"c_strides": (1, 256)}
    assert taken("nn", 256, 4096, compute=compute, **columns) == model.A_ACROSS, "C' = B' A'"
    assert taken("nt", 256, 4096, compute=compute, **columns) == model.ALONG
    for more in ({"b_alignment": 4}, {"b_strides": (4098, 1)}, {"b_strides": (0, 1)},
                 {"b_strides": (-4096, 1)}, {"b_strides": (8192, 2)}):  # fmt: skip
        assert taken("nn", 256, 4096, compute=compute, **more) == model.ALONG, more


def test_integers_are_never_read_across_k():
    asked = Problem.stored(1024, 1024, 1024, "int8", "int32", "nn", capability=(9, 0))
    assert model.chosen_for(asked).lies == model.ALONG
    assert "ACROSS" not in find("cuda", "wgmma_types").plan(asked)


def test_of_what_is_fused_wide_tiles_have_no_build():
    asked = Problem.stored(4096, 4096, 4096, "float32", "float32", "nn", compute="tf32",
                           capability=(9, 0))  # fmt: skip
    assert find("cuda", "wgmma_types").plan(asked)["BLOCK_N"] == 256
    assert find("cuda", "wgmma_types").plan(replace(asked, bias=True))["BLOCK_N"] == 128


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_call_goes_by_its_plan(compute):
    """On the simulator's eight SMs, three calls of one kind."""
    asked = Problem.stored(200, 516, 96, "float32", "float32", "nn", compute=compute)
    assert find("cuda", "wgmma_types").plan(asked)["ACROSS"] == model.B_ACROSS
    for seed in range(3):
        torch.manual_seed(seed)
        a, b = torch.randn(200, 96), torch.randn(96, 516)
        c = tcgemm.gemm(a, b, compute=compute, backend="cuda", kernel="wgmma_types")
        assert accuracy.error_ratio(a, b, c, Fusion(compute=compute)) <= 1


def test_of_plans_that_were_timed_the_one_taken_is_nearly_the_fastest():
    """Of reports/nvidia-h200/trials/across_k.csv: with an operand across K, and with copies."""
    timed, others = defaultdict(dict), {}
    with (ROOT / "reports/nvidia-h200/trials/across_k.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            what = tuple(row[name] for name in ("run", "compute", "layout", *"MNK"))
            kernel, *settings = row["what"].split()
            if kernel == "across" or settings[:1] == ["wgmma_types"]:
                plan = dict(each.split("=") for each in settings if "=" in each)
                names = "BLOCK_M", "BLOCK_N", "REPACK", "SPLITS", "ACROSS", "CLUSTER"
                key = tuple(int(plan.get(name, name == "SPLITS")) for name in names)
                timed[what][key] = min(float(row["us"]), timed[what].get(key, torch.inf))
            elif settings[:1] == ["mma_types"]:
                others[what] = float(row["us"])
    lost, won, by_rung = [], [], []
    for of, found in timed.items():
        _, compute, layout, *sizes = of
        asked = Problem.stored(
            *map(int, sizes), "float32", "float32", layout, compute=compute, capability=(9, 0)
        )
        plan = find("cuda", "wgmma_types").plan(asked)
        key = tuple(plan.get(name, int(name == "SPLITS")) for name in names)
        if key in found:
            lost.append(found[key] / min(found.values()))
            copies = [us for (*_, across, _), us in found.items() if not across]
            won.append(min(copies, default=found[key]) / found[key])
            taken = others[of] if choose(asked, "cuda").name == "mma_types" else found[key]
            by_rung.append(taken / min(others[of], found[key]))
    assert len(lost) > 150, (len(lost), len(timed))
    assert statistics.geometric_mean(lost) < 1.03
    assert max(lost) < 1.6
    assert statistics.geometric_mean(won) > 1.2, "what copies would have taken"
    assert statistics.geometric_mean(by_rung) < 1.01, "beside mma_types"
