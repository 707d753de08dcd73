"""The files of constants of model.py, one a GPU: which is taken, and what one has to hold.

``model-<gpu>.json`` in the user's folder ($TCGEMM_CACHE_DIR, or ~/.cache/tcgemm), as ``tcgemm tune
--model`` writes it, comes before the one that is shipped beside this file. A GPU that has neither
gets that of another with the same compute capability, scaled by their data sheets. A file holds the
GPU's slug, its SMs, the seeds of the drawn shapes that it was fitted to, and for each kernel, named
"backend/kernel", how many rows it had and for each term (constant, most that was seen of the term,
rows that had some). Imports no torch.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .. import gpus

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "TCGEMM_CACHE_DIR"
"""Environment variable that names the folder of the user's own files."""

TERMS = (
    "start",
    "multiply",
    "load",
    "load_split_sectors",
    "load_by_elements",
    "memory",
    "step",
    "wave",
    "divided",
    "partials",
    "store",
    "odd_c",
    "outside",
)
"""Names of the terms, in the order in which ``model.terms`` gives them."""

Constants = Sequence[Sequence[float]]
"""(constant, most that was seen of the term, rows that had some), in the order of TERMS."""

FIT_AGAIN = "'tcgemm tune --model' fits one"


class Model(NamedTuple):
    """What a GPU's file says."""

    constants: Mapping[str, Constants]
    """ "backend/kernel" -> its constants; empty of a GPU that has no file."""
    sms: int = 0
    seeds: tuple[int, ...] = ()
    """Of the drawn shapes that it was fitted to."""
    path: Path | None = None
    yours: bool = False
    """Whether the file is the user's own."""
    scaled_from: str = ""
    """Slug of the GPU that it is scaled from, where this one has no file."""

    def seen(self, seeds: Sequence[int]) -> bool:
        """Whether it was fitted to drawn shapes of one of these seeds."""
        return not {*seeds}.isdisjoint(self.seeds)

    @property
    def whose(self) -> str:
        """In words that stand before "model"."""
        if self.scaled_from:
            return f"{self.scaled_from}'s scaled"
        return "your" if self.yours else "the shipped"


_of: dict[str, Model] = {}


def of(slug: str) -> Model:
    """The model of a GPU: the user's own, else the shipped one, else that of a GPU of the same
    compute capability, scaled; else one that knows no kernel."""
    if slug not in _of:
        _of[slug] = _of_user(slug) or _shipped(slug) or _scaled(slug) or Model({})
    return _of[slug]


def forget() -> None:
    """Read the files anew from now on."""
    _of.clear()


@contextmanager
def standing_in(slug: str, model: Model) -> Iterator[None]:
    """Have choices go by this model of a GPU within the context, in all threads."""
    before = of(slug)
    _of[slug] = model
    try:
        yield
    finally:
        _of[slug] = before


def user_path(slug: str) -> Path:
    """Where the user's own file of a GPU lies, or would lie."""
    folder = os.environ.get(FOLDER_VARIABLE) or os.path.expanduser("~/.cache/tcgemm")
    return Path(folder) / f"model-{slug}.json"


def _shipped(slug: str) -> Model | None:
    path = _path_shipped(slug)
    return read(path, slug) if path.is_file() else None


def _path_shipped(slug: str) -> Path:
    return Path(__file__).with_name(f"model-{slug}.json")


def _scaled(slug: str) -> Model | None:
    """The shipped model of the nearest GPU that has one. Its memory is slower or faster by what the
    data sheets say, and so is its arithmetic; what else a kernel takes is taken to be the same."""
    kin = gpus.kin(slug, lambda other: _path_shipped(other).is_file())
    of_kin = _shipped(kin) if kin else None
    if of_kin is None:
        return None
    mine, theirs = gpus.lookup(slug), gpus.lookup(kin)
    memory = (theirs.bandwidth_gb_s or 1.0) / (mine.bandwidth_gb_s or 1.0)
    arithmetic = (theirs.peak("bfloat16") or 1.0) / (mine.peak("bfloat16") or 1.0)
    # The peak is of all SMs, and the term counts operations of the busiest one.
    arithmetic *= (mine.sms or of_kin.sms) / of_kin.sms
    factors = {"memory": memory, "multiply": arithmetic}
    scaled = {
        name: tuple(
            (constant * factors.get(term, 1.0), most, rows)
            for term, (constant, most, rows) in zip(TERMS, found, strict=True)
        )
        for name, found in of_kin.constants.items()
    }
    return of_kin._replace(constants=scaled, sms=mine.sms or of_kin.sms, scaled_from=kin)


def _of_user(slug: str) -> Model | None:
    """None where there is no file, or it is passed over with a warning."""
    path = user_path(slug)
    if not os.path.isfile(path):  # False, too, where a folder may not be searched
        return None
    try:
        return read(path, slug)._replace(yours=True)
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the model %s is passed over (%s): %s", path, error, FIT_AGAIN)
        return None


def read(path: Path, slug: str) -> Model:
    """The model of a file. Raises OSError or ValueError where it is none, or is another GPU's."""
    table = json.loads(path.read_text())
    check(table, slug)
    return Model(constants_of(table["kernels"]), table["sms"], tuple(table["seeds"]), path)


def constants_of(kernels: Mapping[str, Mapping[str, Any]]) -> dict[str, Constants]:
    """Kernel -> its constants in the order of TERMS, of the part ``kernels`` of a file."""
    return {name: tuple(found[term] for term in TERMS) for name, found in kernels.items()}


def check(table: Any, slug: str) -> None:
    """Raise ValueError, naming what is wrong, where a table is no model of that GPU."""
    if not isinstance(table, dict):
        raise ValueError(f"it holds a {type(table).__name__}, not a model")
    if table.get("gpu") != slug:
        raise ValueError(f"it is of {table.get('gpu')!r}, and this GPU is {slug!r}")
    if not _whole(table.get("sms")) or table["sms"] < 1:
        raise ValueError(f"it says that the GPU has {table.get('sms')!r} SMs")
    seeds, kernels = table.get("seeds"), table.get("kernels")
    if not isinstance(seeds, list) or not all(map(_whole, seeds)):
        raise ValueError(f"its seeds are no list of whole numbers: {seeds!r:.80}")
    if not isinstance(kernels, dict) or not all(isinstance(of, dict) for of in kernels.values()):
        raise ValueError("it has no constants of kernels")
    for name, found in kernels.items():
        if other := set(TERMS) ^ (set(found) - {"rows"}):
            terms = ", ".join(sorted(other))
            raise ValueError(f"{name} has other terms than this version of tcgemm: {terms}")
        for term in TERMS:
            told = found[term]
            if not isinstance(told, list) or len(told) != 3 or not all(map(_amount, told)):
                raise ValueError(f"{term} of {name} is {told!r:.80}, not three numbers from 0 on")


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _amount(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value) and value >= 0
    except OverflowError:  # an int that no float holds
        return False
