"""How wgmma_types divides C and K, and how it reads A: a model of its time, which chooses."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

from .cost import ceil_div
from .gpu import SIMULATED_SMS
from .gpu import of as gpu_of
from .parts import STEP_BYTES, Sizes, Way, best, divisions, fits, room, us
from .refusals import column_major

ALONG, A_ACROSS, B_ACROSS = 0, 1, 2
"""How the kernel's A lies: along K, if need be in a copy; or across K, where threads load it into
registers. B_ACROSS: what by the rows of C is B, since C transposed is computed."""


class Tiling(NamedTuple):
    """One way to divide C and a block; the launcher has an instance for each of a list."""

    rate: int
    """Speed of a busy SM, in percent of the first of its list."""
    consumers: int
    halves: int
    """Of 64 rows for each consumer."""
    block_n: int
    pingpong: bool = False
    """A tile is one consumer's, else all work on it."""
    repack: bool = False
    """A pass beforehand splits B of tf32x3, else idle warps of each block do, step by step."""

    @property
    def block_m(self) -> int:
        return 64 * self.halves * (1 if self.pingpong else self.consumers)


SMALL, SMALL_ACROSS = Tiling(65, 1, 1, 128), Tiling(60, 1, 1, 128)

TILINGS = {
    "split": (Tiling(100, 2, 1, 128), SMALL),
    "split beforehand": (Tiling(100, 2, 1, 128, repack=True),),
    "promoted": (Tiling(100, 2, 1, 128), Tiling(94, 3, 1, 128), SMALL),
    "promoted fused": (Tiling(100, 2, 1, 128), SMALL),
    "plain tf32": (
        Tiling(100, 2, 2, 128, True),
        Tiling(102, 2, 2, 192, True),
        Tiling(101, 2, 1, 256),
        SMALL,
    ),
    "plain": (Tiling(100, 2, 2, 128, True), Tiling(102, 2, 2, 192, True), SMALL),
    "fused": (Tiling(100, 2, 2, 128, True), SMALL),
    "across": (Tiling(100, 2, 1, 256), Tiling(91, 2, 1, 128), SMALL_ACROSS),
}
"""What is summed, or fused -> the tilings that it has. No two of a list have the same tile of C, by
which the launcher is told one; REPACK tells it of which list: "split" or "split beforehand". ACROSS
tells it that A lies across K: of tf32 it has those of "across" then, where something is fused the
narrow ones, and of tf32x3 the same as along K."""

STEP_US_OF = {"int32": 0.34, "fast": 0.32, "float32": 0.35, "tf32": 0.32, "tf32x3": 1.08}
"""How products are summed -> what an SM takes for a step along K of a tile of 128 x 128 at the rate
of the first tiling of its list."""

STEP_US = 0.2
"""What a wave of tiles of 128 x 128 takes less for a step along K where B has been split
beforehand: 0.21 to 0.36 at the twelve timed products that have such tiles in either case
(reports/nvidia-h200/trials/tf32x3.csv)."""

MOST_STAGES, RING_BYTES = 8, 210 * 1024
"""Of a block: see NUM_STAGES in wgmma_types/tiling.cuh. Where it splits B, which takes longer than
loads do, there are fewer."""

COPY_US, COPY_BYTES_PER_US = 1.5, 2.4e6
"""Of a copy of an operand that TMA cannot read along K: its launch, and bytes read and written."""

STORED_BYTES_PER_US = 0.72e6, 3.2e6
"""Of a C of float32 whose rows begin anywhere, and at multiples of 16 bytes."""

PASS_US = 3.0
"""Of the pass that splits B: its launch, its first loads and its last stores."""

PASS_BYTES_PER_US = 3.5e6
"""Read and written by the pass: 4 bytes of an element, and 8. A copy of a B that TMA cannot read
along K, in whose place it is made, has 4 and 4."""


def is_fused(problem: Any) -> bool:
    """Whether more is asked than products, so that an instance of its own runs."""
    return not {*problem.fused} <= {"batch"}


def sms_of(problem: Any) -> int:
    return SIMULATED_SMS if problem.device == "cpu" else gpu_of(problem).sms


class Side(NamedTuple):
    """What the kernel calls A or B."""

    rows: int
    """Of A, or columns of B."""
    strides: tuple[int, int]
    """Along K, and across it."""
    batch_stride: int
    alignment: int

    @property
    def along_k(self) -> bool:
        """Whether TMA reads it as it lies, so that it is not copied in any case."""
        apart = self.strides[1], self.batch_stride
        return self.strides[0] == 1 and self.alignment % 16 == 0 and not any(x % 4 for x in apart)

    def across_k(self, batch: int) -> bool:
        """Whether TMA reads it, of float32, with its neighbours across K, and not along it."""
        apart = [self.strides[0]] + [self.batch_stride] * (batch > 1 and self.batch_stride != 0)
        regular = all(x % 4 == 0 and 0 < x < 2**38 for x in apart)
        return self.strides[1] == 1 and self.alignment % 16 == 0 and regular and not self.along_k


class Product(NamedTuple):
    """A product as the kernel sees it: its C by rows, and for B_ACROSS that of C transposed."""

    a: Side
    b: Side
    K: int
    batch: int
    lies: int
    """ALONG, A_ACROSS or B_ACROSS: how A is read."""

    @property
    def elements_of_b(self) -> int:
        """Of all matrices that are apart."""
        return self.b.rows * self.K * (self.batch if self.b.batch_stride else 1)

    @property
    def elements_copied(self) -> list[int]:
        """Of each operand that has to be copied along K."""
        of_a = self.a.rows * self.K * (self.batch if self.a.batch_stride else 1)
        copied = [] if self.a.along_k or self.lies != ALONG else [of_a]
        return copied if self.b.along_k else [*copied, self.elements_of_b]

    def tiles(self, tiling: Tiling) -> int:
        rows, cols = ceil_div(self.a.rows, tiling.block_m), ceil_div(self.b.rows, tiling.block_n)
        return rows * cols * self.batch

    def sizes(self, width: int) -> Sizes:
        """``width``: elements of a step along K."""
        return Sizes(self.a.rows, self.b.rows, ceil_div(self.K, width), 4, self.batch)


def product_of(problem: Any, lies: int = ALONG) -> Product:
    of_a, of_b, _ = problem.batch_strides
    a = Side(problem.M, problem.a_strides[::-1], of_a, problem.a_alignment)
    b = Side(problem.N, problem.b_strides, of_b, problem.b_alignment)
    if column_major((problem.M, problem.N), problem.c_strides) != (lies == B_ACROSS):
        a, b = b, a
    return Product(a, b, problem.K, problem.batch, lies)


def _ways_to_lie(problem: Any) -> list[Product]:
    """The product, once for each operand that can be read across K, as it lies."""
    if problem.dtype_in != "float32":
        return []
    products = [product_of(problem, lies) for lies in (A_ACROSS, B_ACROSS)]
    return [product for product in products if product.a.across_k(problem.batch)]


def _terms_bytes(product: Product, beforehand: bool) -> int:
    """Of B in two terms, where the pass beforehand writes it."""
    return 8 * product.elements_of_b * beforehand


def _beforehand_us(product: Product) -> float:
    """What the pass takes that splits B; where B is copied in any case, what it takes longer."""
    more = 4 * product.elements_of_b / PASS_BYTES_PER_US
    return PASS_US + 3 * more if product.b.along_k else more


def _pays_beforehand(product: Product, tiling: Tiling, sms: int, room_bytes: int) -> bool:
    """Whether the steps of all waves save more than the pass takes; and whether there is room for
    what it writes.

    Every row of tiles reads what the pass has split once, so a C of few rows is left to the kernel.
    """
    if tiling.consumers < 2:
        return False
    steps = ceil_div(product.tiles(tiling), sms) * ceil_div(product.K, 32)
    fits = _terms_bytes(product, True) <= room_bytes
    return fits and steps * STEP_US > _beforehand_us(product)


def _kind(problem: Any, fused: bool) -> str:
    """The list of tilings that a problem may take, of an A along K."""
    if problem.compute == "float32":
        return "promoted fused" if fused else "promoted"
    if problem.compute == "tf32x3":
        return "split"
    if problem.compute == "tf32" and not fused:
        return "plain tf32"
    return "fused" if fused else "plain"


def _tilings(problem: Any) -> tuple[Tiling, ...]:
    """All that a plain product may take, of an A along K; in tf32x3 of any A."""
    beforehand = TILINGS["split beforehand"] if problem.compute == "tf32x3" else ()
    return TILINGS[_kind(problem, False)] + beforehand


def tiling_of(problem: Any, room_bytes: int) -> Tiling:
    """The tiling that ends first, by waves x area / rate, of an A along K and a whole K."""
    kind, product, sms = _kind(problem, is_fused(problem)), product_of(problem), sms_of(problem)
    chosen = _fastest(kind, product.a.rows, product.b.rows, problem.batch, sms)
    if kind == "split" and _pays_beforehand(product, chosen, sms, room_bytes):
        return TILINGS["split beforehand"][0]
    return chosen


def _way(compute: str, product: Product, tiling: Tiling) -> Way:
    """A tiling as the model of parts sees it."""
    area = tiling.block_m * tiling.block_n / 128 / 128
    step = STEP_US_OF.get(compute, STEP_US_OF["float32"]) * area * 100 / tiling.rate
    stages = min(MOST_STAGES, RING_BYTES // ((tiling.block_m + tiling.block_n) * STEP_BYTES))
    if not tiling.repack:
        return Way(tiling.block_m, tiling.block_n, step, stages)
    before = _beforehand_us(product)
    return Way(tiling.block_m, tiling.block_n, step - STEP_US, stages, before)


class Choice(NamedTuple):
    """How a product is computed: the tile of C, the parts of K, and how A is read."""

    tiling: Tiling
    parts: int = 1
    lies: int = ALONG


def divided(problem: Any, room_bytes: int) -> Choice | None:
    """The tiling and the parts of K of a product that ends first with K in parts, else None.

    What is fused the second launch does, so that all tilings of plain products are there. What is
    copied whichever the tiling is in no time here.
    """
    if problem.batch > 1:
        return None
    product, sms = product_of(problem), sms_of(problem)
    width = STEP_BYTES // (4 if problem.dtype_in == "float32" else 1)
    of = product.sizes(width)
    tilings = _tilings(problem)
    tiling_by_way = {_way(problem.compute, product, tiling): tiling for tiling in tilings}
    ways = [
        (way, parts)
        for way in tiling_by_way
        for parts in divisions(of, way.block_m, way.block_n, sms)
        if fits(of, parts, width, room_bytes, _terms_bytes(product, way.before_us > 0))
    ]
    found = best(of, _way(problem.compute, product, tiling_of(problem, room_bytes)), ways, sms)
    return Choice(tiling_by_way[found[0]], found[1]) if found else None


def _choices_across(problem: Any, product: Product, sms: int, room_bytes: int) -> Iterator[Choice]:
    """What there is room for of an A across K."""
    width, three = STEP_BYTES // 4, problem.compute == "tf32x3"
    # The sums of parts lie as C does, whichever way it is computed.
    of, by_rows = product.sizes(width), product_of(problem).sizes(width)
    for tiling in _tilings(problem) if three else TILINGS["across"]:
        beside = _terms_bytes(product, tiling.repack)
        whole = three or tiling.block_n <= 128 or not is_fused(problem)
        if whole and beside <= room_bytes:
            yield Choice(tiling, 1, product.lies)
        parts = divisions(of, tiling.block_m, tiling.block_n, sms) if problem.batch == 1 else ()
        for number in parts:
            if fits(by_rows, number, width, room_bytes, beside):
                yield Choice(tiling, number, product.lies)


def chosen_for(problem: Any) -> Choice:
    """The way that ends first by the model. A choice asks for its time and then for its plan."""
    return _chosen(problem, sms_of(problem), room())


@lru_cache(maxsize=1024)
def _chosen(problem: Any, sms: int, room_bytes: int) -> Choice:
    along = divided(problem, room_bytes) or Choice(tiling_of(problem, room_bytes))
    choices = [
        choice
        for product in _ways_to_lie(problem)
        for choice in _choices_across(problem, product, sms, room_bytes)
    ]
    return min((along, *choices), key=lambda x: microseconds(problem, x, sms)) if choices else along


def microseconds(problem: Any, choice: Choice, sms: int) -> float:
    """Microseconds of float32, with what is copied and stored."""
    product, tiling = product_of(problem, choice.lies), choice.tiling
    copied = product.elements_copied
    if tiling.repack and not product.b.along_k:
        copied = copied[:-1]
    copies = len(copied) * COPY_US + 8 * sum(copied) / COPY_BYTES_PER_US
    rate = STORED_BYTES_PER_US[max(problem.c_strides) % 4 == 0]
    stored = 4 * problem.M * problem.N * problem.batch / rate
    way = _way(problem.compute, product, tiling)
    return us(product.sizes(STEP_BYTES // 4), way, choice.parts, sms) + copies + stored


@cache
def _fastest(kind: str, M: int, N: int, batch: int, sms: int) -> Tiling:
    def time(tiling: Tiling) -> float:
        tiles = -(-M // tiling.block_m) * -(-N // tiling.block_n) * batch
        return -(-tiles // sms) * tiling.block_m * tiling.block_n / tiling.rate

    return min(TILINGS[kind], key=time)
