"""warp_specialized: its row, what it refuses, and its plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..host.storage import OVERLAP, column_major, itemsize, letter
from ..host.tile_blocks import subtile_columns
from ..planning import gpus, tables
from ..planning.dtypes import FLOAT8, FUSES, PLAIN, kind
from ..planning.planner import Config, Planner, few_rows
from ..planning.refusals import refuse_tma
from ..planning.rows import row
from ..planning.tables import LONG_K, SMALL_TILE
from . import across_tiles, divided_tiles, fitted_tiles, one_tile, type_times


class WarpSpecializedPlanner(Planner):
    """A table's configuration; a column-major C is planned as its transpose."""

    by_tma = True
    stores_both_ways = True
    offered = (
        {
            "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 8,
            "CONSUMERS": 2, "SUBTILES": 1, "BUFFERS": 1,
        },
        {
            "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 8,
            "CONSUMERS": 1, "SUBTILES": 2, "BUFFERS": 1,
        },
        {
            "BLOCK_M": 128, "BLOCK_N": 96, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 7,
            "CONSUMERS": 2, "SUBTILES": 3, "BUFFERS": 1, "REST": 32,
        },
        {
            "BLOCK_M": 64, "BLOCK_N": 192, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 6,
            "CONSUMERS": 1, "SUBTILES": 3, "BUFFERS": 1, "REST": 64,
        },
        {
            "BLOCK_M": 128, "BLOCK_N": 192, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 5,
            "CONSUMERS": 2, "SUBTILES": 3, "BUFFERS": 1, "REST": 64,
        },
        {
            "BLOCK_M": 192, "BLOCK_N": 96, "BLOCK_K": 64, "GROUP_M": 8, "NUM_STAGES": 5,
            "CONSUMERS": 3, "SUBTILES": 3, "BUFFERS": 1, "REST": 32,
        },
        {
            "BLOCK_M": 192, "BLOCK_N": 192, "BLOCK_K": 64, "GROUP_M": 4, "NUM_STAGES": 4,
            "CONSUMERS": 3, "SUBTILES": 3, "BUFFERS": 1, "REST": 64,
        },
        {
            "BLOCK_M": 256, "BLOCK_N": 192, "BLOCK_K": 64, "GROUP_M": 4, "NUM_STAGES": 3,
            "CONSUMERS": 2, "SUBTILES": 3, "BUFFERS": 1, "REST": 64,
        },
        *fitted_tiles.TILES,
    )  # fmt: skip

    def pays(self, problem: Any) -> bool:
        """Not for the exact gelu of a large C: on an H200 at 4096 cubed in bfloat16 with a bias
        ``descriptor`` takes 180.8 us against 184.1, and 185.7 against 189.8 in another run; at 1024
        cubed it is slower, 9.2 against 6.4. Nor for few rows."""
        return not few_rows(problem) and not _long_gelu(problem)

    def transposes(self, problem: Any) -> bool:
        return column_major(problem)

    def rows(self, rows: list[dict[str, Any]], problem: Any, limit: int) -> list[dict[str, Any]]:
        """With a C_in, or Z to read, the rows with a buffer for every epilogue subtile, with fewer
        stages where need be; of those that hold, the ones that keep three, with Z four, or else
        all. Neither comes to the subtiles of a second accumulator. Of other types than 16-bit
        floats the fastest by their model, whole or with its K divided, of copies or as it lies."""
        if type_times.modelled(problem):
            return [{"config": self._of_type(rows, problem)}]
        if not (problem.beta or problem.aux == "read"):
            return rows
        changed = []
        for each in rows:
            if "REST" in each["config"]:
                continue
            config = {**each["config"], "BUFFERS": each["config"]["SUBTILES"]}
            types = problem.dtype_out, problem.dtype_in, problem.compute
            while config["NUM_STAGES"] > 2 and limit < self.shared_bytes(config, *types):
                config["NUM_STAGES"] -= 1
            changed.append({**each, "config": config})
        # 8192 x 3072 x 768 with Z: 87.9 us by 128 x 256 in 3 stages, 82.6 by 128 x 128 in 6.
        least = 4 if problem.aux else 3
        return [each for each in changed if each["config"]["NUM_STAGES"] >= least] or changed

    def _of_type(self, rows: list[dict[str, Any]], problem: Any) -> Config:
        sms, copies = gpus.sms_of(problem), _repack(problem)
        whole = tables.choose(rows, problem, sms, self.overlap(problem))
        tiles = [row["config"] for row in rows]

        def us(config: Config) -> float:
            earned = 1 + type_times.EARNED * ("SPLITS" in config)
            plan = config if "ACROSS" in config else {**config, **copies}
            return earned * type_times.us(self.name, problem, plan, sms)

        divided = list(divided_tiles.of_types(tiles, problem, sms))
        return min((whole, *divided, *across_tiles.plans(tiles, divided, problem)), key=us)

    def overlap(self, problem: Any) -> int:
        """A vector that threads store, where TMA cannot store C (device/unaligned_rows.py)."""
        return OVERLAP if refuse_tma(problem, "C") else 0

    def suits(self, config: Config, problem: Any) -> bool:
        if "SWAP" not in config:
            return True
        return fitted_tiles.suits(config, problem, self.overlap(problem), gpus.sms_of(problem))

    def in_parts(self, problem: Any, processors: int) -> tuple[Config, ...]:
        return divided_tiles.offered(problem, processors)

    def second_launch_us(self, problem: Any, plan: Mapping[str, int]) -> float:
        return divided_tiles.second_launch_us(problem.M, problem.N, plan.get("SPLITS", 1))

    def adjust(self, config: Config, problem: Any, limit: int) -> tuple[Config, int]:
        return (config if "ACROSS" in config else {**config, **_repack(problem)}), limit

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """Large tiles of a long K go along the rows of C, where a band of rows runs at once: then
        neighbours share rows of A, their longer side (docs/lab/triton_warp_specialized.md)."""
        m, n = config["BLOCK_M"], config["BLOCK_N"]
        large = m >= n and m * n > SMALL_TILE and problem.K >= LONG_K
        columns = problem.M if config.get("SWAP") else problem.N
        if large and -(-columns // n) * config["GROUP_M"] <= processors:
            config = {**config, "GROUP_M": 1}
        config = one_tile.through_stages(self, config, problem, processors)
        if "SWAP" in config:
            return {**config, "SWAP": int(bool(config["SWAP"]) != transposed)}
        return config

    def shared_bytes(
        self,
        config: Mapping[str, int],
        dtype_out: str,
        dtype_in: str = "bfloat16",
        compute: str = "float32",
    ) -> int:
        """The stages, of both terms of float32 where they are copies, the buffers of epilogue
        subtiles, and barriers."""
        m, n = config["BLOCK_M"], config["BLOCK_N"]
        terms = 2 if kind(dtype_in, compute) == "tf32x3" else 1
        lines = (1 if config.get("ACROSS") else terms) * m + terms * n
        stages = config["NUM_STAGES"] * lines * config["BLOCK_K"] * itemsize(dtype_in)
        if config.get("SPLITS", 1) > 1:
            return stages + one_tile.BARRIERS  # threads store the parts
        columns = subtile_columns(n, config.get("REST", 0), config["SUBTILES"])
        return stages + config["BUFFERS"] * m * columns * itemsize(dtype_out) + one_tile.BARRIERS


MOST_OF_FLOAT64 = 2**30
"""Elements of a side from which on twice as many are beyond an int32."""


def refuse(problem: Any) -> str | None:
    """Why wgmma or TMA cannot do it, as a sentence with the numbers; None when they can."""
    if problem.capability is not None and problem.capability >= (10, 0):
        here = "{}.{}".format(*problem.capability)
        return f"wgmma exists on compute capability 9.0 alone and this GPU has {here}"
    longest = max(problem.M, problem.N, problem.K)
    if problem.dtype_in == "float64" and longest >= MOST_OF_FLOAT64:
        return (
            f"a side has {longest} elements of float64, which are pairs of int32 to TMA, and it "
            f"counts {MOST_OF_FLOAT64} of those: fused takes it"
        )
    if problem.aux and (itemsize(problem.dtype_in) != 2 or problem.dtype_in != problem.dtype_out):
        what = "a sum of rows" if problem.aux == "sums" else "a pre-activation"
        return (
            f"A and B are {problem.dtype_in}, C is {problem.dtype_out}, and {what} needs one dtype "
            "of 16 bits"
        )
    if problem.aux == "sums" and (reason := _no_sums(problem)):
        return reason
    if problem.compute == "tf32x3" and problem.batch > 1:
        return f"a batch of {problem.batch} in tf32x3 is not fused here: descriptor takes it"
    reason = refuse_tma(problem)
    return refuse_tma(problem, "AB") if reason and _threads_store(problem) else reason


def _threads_store(problem: Any) -> bool:
    """Whether threads can store C where TMA cannot: a plain product's, of 16 bits, whose rows or
    columns lie apart, by fewer bytes than 32 bits count."""
    if not problem.plain or problem.batch > 1 or itemsize(problem.dtype_out) != 2:
        return False
    seen = problem.transposed() if column_major(problem) else problem
    pitch = seen.N if seen.M == 1 else seen.c_strides[0]
    return letter((seen.M, seen.N), seen.c_strides) == "n" and seen.N <= pitch < 2**30


def _no_sums(problem: Any) -> str | None:
    """Why the rows of A are not summed beside this product."""
    if problem.fused != ("row_sums",):
        return f"sums of rows come with a plain product of matrices, not with {problem.fused[0]}"
    if column_major(problem):
        return "C is column-major, so that B' A' is computed, and the rows summed are those of A"
    if letter((problem.M, problem.K), problem.a_strides) != "t":
        return "A is not stored transposed, and its rows are summed along what is stored"
    return None


def _repack(problem: Any) -> Config:
    """REPACK=1 where the kernel needs copies of A and B: wgmma reads blocks of 8 bits and of tf32
    along K alone, and threads those of float64 either way. float32 as two terms is copied always,
    and needs no word. Plans with ACROSS say themselves what is copied."""
    if kind(problem.dtype_in, problem.compute) in ("", "float64", "tf32x3"):
        return {}
    a = letter((problem.M, problem.K), problem.a_strides)
    b = letter((problem.N, problem.K), problem.b_strides[::-1])
    return {} if a == b == "n" else {"REPACK": 1}


def _long_gelu(problem: Any) -> bool:
    """16-bit, no C_in, and as many elements of C as 4096 squared."""
    large = problem.M * problem.N * problem.batch >= 4096**2
    plain = problem.dtype_in in ("float16", "bfloat16") and problem.compute == "float32"
    return large and plain and problem.epilogue == "gelu" and problem.beta == 0


PLANNER = WarpSpecializedPlanner(
    "warp_specialized",
    (
        *("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_STAGES"),
        *("CONSUMERS", "SUBTILES", "BUFFERS"),
    ),
)

ROW = row(
    PLANNER,
    "in Gluon: a producer warp loads, warpgroups multiply, C is stored under the next tile",
    pairs=(
        *PLAIN,
        ("int8", "int32"),
        *FLOAT8,
        ("float64", "float64"),
        ("float32", "float32", "tf32"),
        ("float32", "float32", "tf32x3"),
    ),
    fuses=(*FUSES, "preactivation", "derivative", "row_sums"),
    devices=("cuda",),
    capability=(9, 0),
    shapes="as descriptor, on compute capability 9.0 only; no batches in tf32x3; plain products of "
    "16 bits have a C in rows or columns that begin anywhere",
    refuse=refuse,
)
