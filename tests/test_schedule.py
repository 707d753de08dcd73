"""The schedule of the persistent rungs in the simulator: every tile once, the first of C last."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path

import pytest
import torch

simulator = import_module("tcgemm.cuda_ref.simulator")

SOURCE = Path(__file__).parent / "simulated" / "schedule.cu"


def places(rows, cols, cluster, shares_a, batch):
    """For each number the (matrix, row, column) of each block's tile, in the order of numbers."""
    of_rows, of_cols = (1, cluster) if shares_a else (cluster, 1)
    numbers = -(-rows // of_rows) * -(-cols // of_cols) * batch
    c = torch.full((numbers, cluster), float("nan"))
    plan = {"CLUSTER": cluster, "SPLITS": 1 + shares_a, "GROUPS": batch}
    report = simulator.simulate(
        SOURCE, torch.ones(rows, 1), torch.ones(1, cols), c, plan=plan, timeout_s=30
    )
    assert not report.findings
    return [[(p // 10000, p // 100 % 100, p % 100) for p in line] for line in c.int().tolist()]


@pytest.mark.parametrize(("cluster", "shares_a"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.parametrize(("rows", "cols", "batch"), [(1, 1, 1), (9, 4, 1), (6, 5, 3), (4, 13, 2)])
def test_each_tile_is_visited_once_and_those_of_c_s_beginning_last(
    rows, cols, batch, cluster, shares_a
):
    found = places(rows, cols, cluster, shares_a, batch)
    tiles = [tile for line in found for tile in line if tile[1] < rows and tile[2] < cols]
    assert sorted(tiles) == list(itertools.product(range(batch), range(rows), range(cols)))
    assert (0, 0, 0) in found[-1]
    matrices = [line[0][0] for line in found]
    assert matrices == sorted(matrices, reverse=True)
    # Of a matrix, from the last band of four rows of tiles to the first.
    bands = [min(row for _, row, _ in line) // 4 for line in found if line[0][0] == 0]
    assert bands == sorted(bands, reverse=True)
