"""What the overlapped and the one-shot way cost on a GPU: fitted to timed rows, or assumed.

scripts/fit_overlap.py writes the file, overlapped-<gpu>.json, from rows of
``tcgemm bench --several``. Imports no torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .. import gpus

LANGUAGES = ("triton", "cuda")
"""Of the overlapped kernels. The first is taken where nothing says that the other is faster."""


@dataclass(frozen=True, slots=True)
class Way:
    """An overlapped product of one language and operation takes

    flags_us + peer_us x further ranks + longer + shorter / pieces

    of the transfer and the product, which has ``rate`` of the local kernels' speed.
    """

    rate: float
    flags_us: float
    pieces: float
    peer_us: float = 0.0
    """Of each rank more than ``world``."""
    world: int = 2
    """Ranks over which the layers were timed."""

    def us(self, gemm_us: float, transfer_us: float, world: int) -> float:
        """Microseconds of the whole. The fields may be arrays, as where they are fitted."""
        product = gemm_us / self.rate
        both, apart = product + transfer_us, abs(product - transfer_us)
        longer, shorter = (both + apart) / 2, (both - apart) / 2
        return self.waits_us(world) + longer + shorter / self.pieces

    def waits_us(self, world: int) -> float:
        """Microseconds of flags and of what starts; of fewer ranks than were timed as of those."""
        return self.flags_us + self.peer_us * max(0, world - self.world)


ASSUMED = Way(rate=1.0, flags_us=10.0, pieces=16.0)
"""Of a GPU without rows: flags, and pieces of which the last one's way is not hidden."""


ASSUMED_ONE_SHOT_US = 8.0
"""Of the one-shot way besides its product and its stores: two launches and flags there and back."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is known of a GPU."""

    ways: dict[tuple[str, str], tuple[Way, ...]]
    """(language, operation) -> its way over each number of ranks that was timed, in order."""
    one_shot: dict[str, float] = field(default_factory=dict)
    """Operation -> microseconds of the one-shot way besides its product and its stores."""

    def one_shot_us(self, op: str) -> float:
        return self.one_shot.get(op, ASSUMED_ONE_SHOT_US)

    def way(self, language: str, op: str, world: int) -> Way:
        """Of so many ranks. Where these were not timed: of the next smaller number that was, or
        else of the smallest."""
        ways = self.ways.get((language, op), (ASSUMED,))
        return next((way for way in reversed(ways) if way.world <= world), ways[0])


def path_of(slug: str) -> Path:
    """The file of a GPU."""
    return Path(__file__).with_name(f"overlapped-{slug}.json")


@cache
def timed_on(slug: str) -> str:
    """Slug of the GPU whose rows are taken for those of this one: itself, or one of the same peak
    rates; "" where neither has a file."""
    return gpus.kin(slug, lambda each: path_of(each).is_file(), same_peaks=True)


@cache
def of(slug: str) -> Fitted:
    """What rows have said of a GPU, or of one of the same peak rates; nothing where neither has a
    file."""
    path = path_of(timed_on(slug))
    if not path.is_file():
        return Fitted({})
    found = json.loads(path.read_text())
    ways = {
        (language, op): tuple(Way(**way) for way in by_world)
        for language, by_op in found["ways"].items()
        for op, by_world in by_op.items()
    }
    return Fitted(ways, found.get("one_shot", {}))
