"""The orders of tiles of either language's rungs against the model of ``tile_order``, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import OperandTypeError
from ...problem import ITEMSIZE
from . import tile_order

if TYPE_CHECKING:
    from ...gpus import Gpu

ORDER = "order"
GROUPS = (None, 1, 2, 4, 8, 16, 32, 64)
"""Orders that are compared: row after row, then GROUP_M."""


def order_rows(
    kernel: str, shape: tuple[int, int, int], dtype: str, gpu: Gpu
) -> list[dict[str, Any]]:
    """The L2 model over orders of tiles, one row per tile size and order.

    ``order`` takes the tiles of the CUDA rungs that have a GROUP_M and of Triton's grouped rung;
    a Triton rung its own.
    """
    if dtype not in ("float16", "bfloat16"):
        raise OperandTypeError(f"orders are of float16 or bfloat16 operands, not {dtype!r}")
    M, N, K = shape
    itemsize = ITEMSIZE[dtype]
    rows = []
    for name, block_m, block_n in _tiles(kernel, shape, dtype):
        for group in (None,) if kernel == "triton/naive" else GROUPS:
            model = tile_order.traffic(
                M, N, K, block_m=block_m, block_n=block_n, group_m=group, places=gpu.sms or 1,
                l2_bytes=gpu.l2_bytes or 0, itemsize=itemsize,
            )  # fmt: skip
            least = (M * K + K * N) * itemsize
            rows.append(
                {
                    "kernel": name, "M": M, "N": N, "K": K, "dtype_in": dtype, "gpu": gpu.name,
                    "BLOCK_M": block_m, "BLOCK_N": block_n,
                    "GROUP_M": group, "order": "row-major" if group is None else "grouped",
                    "l2_hit_rate": model.hit_rate, "read_bytes": model.read_bytes,
                    "dram_bytes": model.dram_bytes, "dram_over_least": model.dram_bytes / least,
                    "flop_per_dram_byte": 2 * M * N * K / model.dram_bytes,
                    "waves": model.waves, "ridge": gpu.ridge(dtype),
                }
            )  # fmt: skip
    return rows


def _tiles(kernel: str, shape: tuple[int, int, int], dtype: str) -> list[tuple[str, int, int]]:
    from ... import dispatch
    from ...problem import Problem

    problem = Problem.stored(*shape, dtype, dtype, capability=(9, 0))
    if kernel == ORDER:
        names = [row for row in dispatch.ladder("cuda") if "GROUP_M" in row.plan(problem)]
        names.append(dispatch.find("triton", "grouped"))
    else:
        names = [dispatch.find("triton", kernel.removeprefix("triton/"))]
    tiles = []
    for row in names:
        plan = row.plan(problem)
        tiles.append((row.full_name, int(plan["BLOCK_M"]), int(plan["BLOCK_N"])))
    return tiles
