"""How a rung is planned: a configuration of its table, fitted to the GPU. Imports no triton.

Every rung has a ``Planner`` in its own ``NAME_plan.py``; one that has more to say than a table
overrides a method there. Configurations come from the table of the GPU (see tables.py). A GPU
without a table of its own takes the one of its architecture, with NUM_STAGES lowered until the
program fits its shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..host.interpreter import PROGRAMS
from ..host.storage import column_major, itemsize
from . import gpus, tables
from .dtypes import kind
from .shared_memory import stage_bytes, tile_bytes

Config = dict[str, int]
"""Settings by name, as a row of a table holds them."""

MOST_STAGES = 10

LEAST_COLUMNS = 64
"""Of a tile that has to be narrower than its table says."""

MOST_ACCUMULATORS = 192
"""Registers of a thread that may hold C, of 255: the rest is addresses and what is on its way."""


UNALIGNED_STEP_US = 1.3
"""A step along K of a tile whose elements are loaded one by one (H200): no copy is asynchronous
then, so that a step is a trip to memory."""


class Planner:
    """Called with a problem, gives the keyword arguments of the rung's ``run``.

    Attributes:
        name: of the rung.
        divides_k: K is divided among programs, and tables speak of the problem with M <= N.
        tunable: ``candidates`` has configurations to try.
        has_table: its configurations come from tables; else ``rows`` makes one.
        offered: tiles that a model may take where no table was tuned; see offered.py.
        offers_its_own: its own plan is one that a model may take, whatever others are chosen.
        offered_by_elements: the same where no vector of A and B can be loaded.
        stores_both_ways: a plan with SWAP computes C' = B' A' for a C by rows, or A B for one by
            columns; without it the kernel computes what lies as C does.
        by_tma: whether TMA loads A and B, of any size: then none is loaded by elements.
    """

    divides_k = False
    tunable = False
    has_table = True
    offered: tuple[Config, ...] = ()
    offered_by_elements: tuple[Config, ...] = ()
    by_tma = False
    stores_both_ways = False
    offers_its_own = False

    def __init__(self, name: str, settings: Sequence[str], *, table: str = "") -> None:
        """
        Args:
            name: of the rung.
            settings: what a configuration of the rung sets.
            table: the rung whose rows it takes for 16-bit operands; by default its own.
        """
        self.name, self.settings, self.table = name, frozenset(settings), table or name

    def __call__(self, problem: Any) -> Mapping[str, int]:
        return _plan(self, problem, tables.edition())

    def unaligned_us(self, problem: Any) -> float | None:
        """Microseconds of a product whose elements are loaded one by one; None by TMA."""
        if "BLOCK_M" not in self.settings or tables.aligned(problem, with_c=False):
            return None
        plan = self(problem)
        sides = (problem.N, problem.M) if plan.get("SWAP") else (problem.M, problem.N)
        tiles = -(-sides[0] // plan["BLOCK_M"]) * -(-sides[1] // plan["BLOCK_N"])
        parts = plan.get("SPLITS", 1)
        steps = -(-problem.K // (plan["BLOCK_K"] * parts))
        processors = gpus.sms_of(problem)
        return 2.0 + max(1.0, tiles * parts / processors) * steps * UNALIGNED_STEP_US

    # What a rung may override.

    def pays(self, problem: Any) -> bool:
        """Whether the rung is worth its machinery where no table says which rung is fastest."""
        return True

    def settled(self, problem: Any) -> bool:
        """Whether the rung is taken, whatever a shipped table or a model of all rungs says."""
        return False

    def own_us(self, problem: Any) -> float | None:
        """Microseconds of its plan by a model of its own, of types other than 16-bit floats (see
        rungs/type_choice.py); None where it has none, or none for such a problem."""
        return None

    def transposes(self, problem: Any) -> bool:
        """Whether the kernel computes C' = B' A', so that the plan is that of the transpose."""
        return False

    def overlap(self, problem: Any) -> int:
        """Columns that neighbouring tiles of C have in common, of a problem as ``transposes`` left
        it."""
        return 0

    def rows(self, rows: list[dict[str, Any]], problem: Any, limit: int) -> list[dict[str, Any]]:
        """The rows of the table to choose from, where ``limit`` bytes of shared memory are."""
        return rows

    def in_tables(self, problem: Any) -> bool:
        """Whether tables have configurations for such a problem."""
        return self.has_table

    def copies(self, problem: Any) -> Config:
        """REPACK=1 where A and B are copied first."""
        return repack(problem)

    def adjust(self, config: Config, problem: Any, limit: int) -> tuple[Config, int]:
        """The chosen configuration and the bytes it may fill, before it is fitted to them."""
        return {**config, **self.copies(problem)}, limit

    def shared_bytes(
        self,
        config: Mapping[str, int],
        dtype_out: str,
        dtype_in: str = "bfloat16",
        compute: str = "float32",
    ) -> int:
        """Upper bound of a program's shared memory: its stages, staged C and barriers, in bytes."""
        stages, staged = stage_bytes(config, dtype_in, compute), tile_bytes(config, dtype_out)
        # C is staged in the memory of the stages, except where the next tile's loads fill them.
        return stages + staged if config.get("FLATTEN") else max(stages, staged)

    def divide(self, config: Config, problem: Any, processors: int, transposed: bool) -> Config:
        """The plan of a table's config; a rung that divides K counts its parts for the problem.

        Args:
            config: as a table has it.
            problem: as ``transposes`` left it.
            processors: SMs.
            transposed: the caller's problem is the transpose of this one.
        """
        return config

    def tiles(self, problem: Any) -> list[tuple[int, int, int]]:
        """BLOCK_M, BLOCK_N and BLOCK_K worth trying for a problem."""
        return []

    def variants(self, tile: tuple[int, int, int], problem: Any, processors: int) -> list[Config]:
        """What else a configuration of that tile may set."""
        return [{}]

    def reads_in_vectors(self, problem: Any) -> bool:
        """Whether it loads no element of A and B one by one."""
        return self.by_tma or tables.aligned(problem, with_c=False)

    def suits(self, config: Config, problem: Any) -> bool:
        """Whether a tile of ``offered`` is meant for such a product."""
        return True

    def in_parts(self, problem: Any, processors: int) -> Sequence[Config]:
        """More tiles that a model may take, of a problem as ``transposes`` left it: their K is
        divided, and SPLITS says in how many parts."""
        return ()

    def second_launch_us(self, problem: Any, plan: Mapping[str, int]) -> float:
        """Microseconds of a second launch of which the constants of the kernel say nothing."""
        return 0.0

    # What all rungs have in common.

    def fit(
        self,
        config: Config,
        dtype_out: str,
        limit: int,
        dtype_in: str = "bfloat16",
        compute: str = "float32",
    ) -> Config:
        """The config with as many stages, then as much BLOCK_K, as fit ``limit`` bytes; a second
        buffer for C goes first.

        No stage and no depth makes room for a tile of C that alone is too large: of such a tile
        half of the columns are left. 128 x 256 of float32 are 128 KB, and an L4 has 99.
        """
        config = dict(config)
        least = 32 if itemsize(dtype_in) == 1 else 16
        shallow = {"BUFFERS": 1, "NUM_STAGES": 2, "BLOCK_K": least}
        while config["BLOCK_N"] > LEAST_COLUMNS and limit < self.shared_bytes(
            {**config, **{name: x for name, x in shallow.items() if name in config}},
            dtype_out,
            dtype_in,
            compute,
        ):
            config["BLOCK_N"] //= 2
        while self.shared_bytes(config, dtype_out, dtype_in, compute) > limit:
            if config.get("BUFFERS", 1) > 1:
                config["BUFFERS"] -= 1
            elif config.get("NUM_STAGES", 1) > 2:
                config["NUM_STAGES"] -= 1
            elif config["BLOCK_K"] > least:
                config["BLOCK_K"] //= 2
            else:
                break
        return config

    def candidates(self, problem: Any, shared: int, processors: int) -> list[Config]:
        """Configurations worth trying, as tables hold them; of the problem with M <= N where the
        rung divides K.

        Not a grid of everything: tiles whose shape fits the problem, each with the steps of K,
        parts and warps that have been among the fastest somewhere, and as many stages as the
        ``shared`` bytes of a program hold.
        """
        found: list[Config] = []
        for tile in self.tiles(problem):
            m, n, k = tile
            warps = 8 if m * n > 128 * 128 else 4
            base = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "NUM_WARPS": warps}
            for extra in self.variants(tile, problem, processors):
                config = {**base, **extra}
                config["NUM_STAGES"] = self._most_stages(config, problem.dtype_out, shared)
                if accumulators(config) > MOST_ACCUMULATORS:
                    continue
                if config["NUM_STAGES"] >= 2 and config not in found:
                    found.append(config)
        return found

    def interpreted(self, problem: Any) -> Config:
        """Tiles for the interpreter, where a program costs milliseconds whatever it computes:
        large, yet two a side where the problem allows, so that edges and ordering stay
        exercised."""

        def block(size: int, most: int) -> int:
            return min(max(16, 1 << (-(-size // 2) - 1).bit_length()), most)

        M, N = (problem.N, problem.M) if self.divides_k else (problem.M, problem.N)
        config = {
            "BLOCK_M": block(M, 128),
            "BLOCK_N": block(N, 128),
            "BLOCK_K": block(problem.K, 256),
            "GROUP_M": 4,
            "FLATTEN": 0,
            "SPLITS": 2,
            "PDL": 0,
            "NUM_STAGES": 2,
            "NUM_WARPS": 4,
        }
        return {name: value for name, value in config.items() if name in self.settings}

    def _most_stages(self, config: Config, dtype_out: str, shared: int) -> int:
        stages = MOST_STAGES
        while stages >= 2:
            if self.shared_bytes({**config, "NUM_STAGES": stages}, dtype_out) <= shared:
                break
            stages -= 1
        return stages


@lru_cache(maxsize=4096)
def _plan(planner: Planner, problem: Any, edition: int) -> Mapping[str, int]:
    transposed = planner.transposes(problem)
    if transposed:
        problem = problem.transposed()
    if problem.device == "cpu":
        config = {**planner.interpreted(problem), **planner.copies(problem)}
        return planner.divide(config, problem, PROGRAMS, transposed)
    capability = problem.capability or (9, 0)
    gpu, limit, processors = gpus.gpu_of(problem)
    usual = gpus.LIMITS.get(capability, gpus.UNKNOWN)
    processors, limit = processors or usual.sms, limit or usual.shared_bytes
    of_table = _rows(planner, problem, gpu, capability) if planner.in_tables(problem) else []
    rows = planner.rows(of_table, problem, limit)
    config = tables.choose(rows, problem, processors, planner.overlap(problem))
    config, limit = planner.adjust(config, problem, limit)
    config = planner.fit(config, problem.dtype_out, limit, problem.dtype_in, problem.compute)
    return planner.divide(config, problem, processors, transposed)


def _rows(
    planner: Planner, problem: Any, gpu: str, capability: tuple[int, int]
) -> list[dict[str, Any]]:
    name = kind(problem.dtype_in, problem.compute)
    table = planner.name if name else planner.table
    names = tables.names(gpu, capability)
    found = (tables.shipped_rows(each, table, name) for each in names)
    rows = next((rows for rows in found if rows), None)
    if rows is None:
        raise ValueError(f"configs-{names[-1]}.json has no rows of {table} for {name}")
    return rows if name else [*tables.of_user(gpu)["kernels"].get(table, []), *rows]


def forget() -> None:
    """Make all plans anew from now on."""
    _plan.cache_clear()


def accumulators(config: Mapping[str, int]) -> int:
    """Registers of a thread that hold the accumulators of a tile, 32 bits each."""
    return config["BLOCK_M"] * config["BLOCK_N"] // (32 * config["NUM_WARPS"])


def repack(problem: Any) -> Config:
    """REPACK=1 where A and B are copied first (see host/repack.py): 8-bit ones that do not lie with
    K contiguous, and float32 ones in products large enough, for tf32 to be rounded."""
    name = kind(problem.dtype_in, problem.compute)
    along_k = problem.a_strides[1] == problem.b_strides[0] == 1
    if name in ("int8", "uint8", "float8", "float8_promoted"):
        return {} if along_k else {"REPACK": 1}
    large = min(problem.M, problem.N) >= 256 and problem.capability not in gpus.OF_MMA_SYNC
    if name == "tf32x3" and along_k:
        return {}
    return {"REPACK": 1} if name in ("tf32", "tf32x3") and large else {}


def tile(m: int, n: int, k: int, warps: int = 4, **settings: int) -> Config:
    """A configuration; of one without NUM_STAGES as many are taken as shared memory holds."""
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "NUM_WARPS": warps, **settings}


def square_tiles(problem: Any) -> list[tuple[int, int, int]]:
    """Tiles worth trying for a rung that does not divide K."""
    if min(problem.M, problem.N) <= 128:
        rows = 64 if problem.M <= 64 else 128
        return [(rows, 32, 128), (rows, 32, 256), (rows, 64, 128), (rows, 128, 64), (rows, 256, 64)]
    return [(64, 64, 128), (64, 128, 64), (128, 64, 64), (128, 128, 64), (128, 256, 64)]


def groups(problem: Any) -> tuple[int, ...]:
    """GROUP_M worth trying."""
    return (1,) if min(problem.M, problem.N) <= 128 else (4, 8)


def few_rows(problem: Any) -> bool:
    """Whether C has fewer than 64 rows in its storage order: less machinery is faster then."""
    return bool((problem.N if column_major(problem) else problem.M) < 64)
