#!/usr/bin/env python3
"""Fits what the overlapped products cost to timed rows: fit_overlap.py [FOLDER ...]

    python scripts/fit_overlap.py                        # reports/nvidia-h200-x2 and -x4
    python scripts/fit_overlap.py --check reports/nvidia-h200-x2     # says how well, writes nothing

Folders are those of `tcgemm bench --several`. For each language and operation it fits the rate, the
flags and the pieces of tcgemm/dist/fitted.py to right rows of 16-bit operands, by the logarithm of
predicted over measured time, and for each operation what the one-shot way takes besides its product
and its stores. It does so for all numbers of ranks together, with what a rank more costs, and for
each number apart, and takes what loses less where it is held out. An all-gather takes as long as
the model of its plan says at least, which knows of tiles, and a reduce-scatter of two waves in CUDA
no longer. The result is tcgemm/dist/overlapped-<gpu>.json.

Held out: the cases are dealt into FOLDS, and each is predicted by what is fitted to the others. It
prints how far off that is, and what the plan loses: the time of the way that it would take over
that of the fastest. It says the same of the fit that the project has, which is held out as a whole
where it was made of other rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tcgemm.bench.several.cases import Case, read
from tcgemm.dist import engine, fitted, model
from tcgemm.dist.planning import ONE_SHOT, OVERLAPPED, WORTH

ROOT = Path(__file__).parents[1]
FOLDS = 4
RATES = [0.70 + 0.01 * i for i in range(31)]
"""Up to 1: of the local product, whose time is part of the limit."""
FLAGS_US = [2.0 * i for i in range(41)]
PIECES = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0]
PEER_US = [2.0 * i for i in range(11)]
ONE_SHOT_US = [0.5 * i for i in range(161)]
NEAR = 1.1
"""Of the fastest way's time, up to which the one-shot way is fitted: elsewhere nobody takes it."""


class Timed(NamedTuple):
    """An overlapped product that was timed."""

    case: Case
    language: str
    gemm_us: float
    transfer_us: float
    """Both as the model has them."""
    us: float
    nccl_us: float
    bounds_us: tuple[float, float] = (0.0, math.inf)
    """By the model of its plan, which knows how many tiles there are."""


def timed(rows: Iterable[Mapping[str, str]], slug: str, contender: str = OVERLAPPED) -> list[Timed]:
    """The last right row of each case and language; of ONE_SHOT the language is "", and what it
    stores at peers is its transfer."""
    found = {}
    for row in rows:
        name, _, language = row["contender"].partition("/")
        if name != contender or row["status"] != "ok" or not (row["ms_p50"] and row["nccl_ms"]):
            continue
        if row["dtype"] not in ("float16", "bfloat16"):
            continue
        sizes = (int(row[name]) for name in ("M", "N", "K"))
        case = Case(row["model"], row["layer"], int(row["world"]), row["op"], *sizes, row["dtype"])
        times = model.times(case.op, *case.local, case.dtype, case.world, model.Host(slug))
        if times is None:
            raise SystemExit(f"no time of {case} is known on {slug}: its links were not measured")
        us, nccl_us = (1e3 * float(row[name]) for name in ("ms_p50", "nccl_ms"))
        moved = times.written_us if contender == ONE_SHOT else times.transfer_us
        bounds = dict(engine.bounds_us(case.op, *case.local, case.dtype, case.world))
        within = bounds.get(language, (0.0, math.inf))
        found[case, language] = Timed(case, language, times.gemm_us, moved, us, nccl_us, within)
    return list(found.values())


def besides_us(rows: Sequence[Timed], others: Sequence[Timed]) -> dict[str, float]:
    """Operation -> what the one-shot way takes besides its product and its stores, of cases in
    which it is the fastest way or nearly so. ``others``: the overlapped products."""
    best = {row.case: min(row.nccl_us, row.us) for row in rows}
    for row in others:
        best[row.case] = min(best.get(row.case, math.inf), row.us)
    found = {}
    for op in dict.fromkeys(row.case.op for row in rows):
        of = [row for row in rows if row.case.op == op]
        of = [row for row in of if row.us <= NEAR * best[row.case]] or of
        known = [(r.gemm_us + r.transfer_us, r.us) for r in of]

        def squares(us: float, known: list[tuple[float, float]] = known) -> float:
            return sum(math.log((apart + us) / taken) ** 2 for apart, taken in known)

        found[op] = min(ONE_SHOT_US, key=squares)
    return found


def predicted_us(ways: fitted.Fitted, row: Timed) -> float:
    way = ways.way(row.language, row.case.op, row.case.world)
    us = way.us(row.gemm_us, row.transfer_us, row.case.world)
    return min(max(us, row.bounds_us[0]), row.bounds_us[1])


def off(ways: fitted.Fitted, row: Timed) -> float:
    """Logarithm of predicted over measured."""
    return math.log(predicted_us(ways, row) / row.us)


def fit(rows: Sequence[Timed], apart: bool) -> tuple[fitted.Way, ...]:
    """The way with the least sum of squares; ``apart``: of each number of ranks, in order. What a
    rank more costs is that of all rows together."""
    worlds = sorted({row.case.world for row in rows})
    together = _least(rows, PEER_US if len(worlds) > 1 else [0.0], worlds[0])
    if not apart or len(worlds) == 1:
        return (together,)
    return tuple(
        _least([row for row in rows if row.case.world == world], [together.peer_us], world)
        for world in worlds
    )


def _least(rows: Sequence[Timed], peer_us: Sequence[float], world: int) -> fitted.Way:
    ways = np.array(list(product(RATES, FLAGS_US, PIECES, peer_us)))
    every = fitted.Way(*ways.T, world=world)
    squares = np.zeros(len(ways))
    for row in rows:
        us = every.us(row.gemm_us, row.transfer_us, row.case.world)
        squares += np.square(np.log(np.clip(us, *row.bounds_us) / row.us))
    return fitted.Way(*map(float, ways[squares.argmin()]), world=world)


def ways_of(rows: Sequence[Timed], apart: bool) -> fitted.Fitted:
    """What is fitted to the rows of each language and operation."""
    keys = dict.fromkeys((row.language, row.case.op) for row in rows)
    return fitted.Fitted(
        {key: fit([r for r in rows if (r.language, r.case.op) == key], apart) for key in keys}
    )


def dealt(rows: Sequence[Timed]) -> Iterable[tuple[list[Timed], list[Timed]]]:
    """(fitted to, held out): cases in turns, all rows of a case on one side."""
    cases = sorted({row.case for row in rows}, key=str)
    for fold in range(min(FOLDS, len(cases))):
        held = set(cases[fold::FOLDS])
        yield [r for r in rows if r.case not in held], [r for r in rows if r.case in held]


class HeldOut(NamedTuple):
    """How well rows are predicted by what is fitted to others."""

    median_off: float
    worst_off: float
    loss: float
    """Mean of the plan's time over that of the fastest, less 1."""
    worst_loss: float
    cases: int


def held_out(rows: Sequence[Timed], slug: str, apart: bool) -> HeldOut:
    """Every case predicted by the others."""
    return judged([(ways_of(others, apart), held) for others, held in dealt(rows)], slug)


def judged(predicted: Iterable[tuple[fitted.Fitted, Sequence[Timed]]], slug: str) -> HeldOut:
    """How well ways predict the rows beside them."""
    errors: list[float] = []
    losses: list[float] = []
    for ways, held in predicted:
        errors += [abs(math.expm1(off(ways, r))) for r in held]
        for case in dict.fromkeys(row.case for row in held):
            of = [row for row in held if row.case == case]
            losses.append(taken_us(of, ways, slug) / min(of[0].nccl_us, *(r.us for r in of)) - 1)
    return HeldOut(median(errors), max(errors), sum(losses) / len(losses), max(losses), len(losses))


def taken_us(of: Sequence[Timed], ways: fitted.Fitted, slug: str) -> float:
    """What the way that the plan would take has taken."""
    case = of[0].case
    times = model.times(case.op, *case.local, case.dtype, case.world, model.Host(slug))
    assert times is not None
    us = {r: predicted_us(ways, r) for r in of}
    best = min(us, key=us.__getitem__)
    return best.us if times.sequence_us >= WORTH * us[best] else of[0].nccl_us


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="of tcgemm bench --several")
    parser.add_argument("--gpu", default="nvidia-h200", help="slug of the GPU")
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    folders = asked.folders or [
        path for path in (ROOT / f"reports/{asked.gpu}-x{n}" for n in (2, 4)) if path.is_dir()
    ]
    read_rows = [row for folder in folders for row in read(folder)]
    rows = timed(read_rows, asked.gpu)
    if len({row.case for row in rows}) < 2 * FOLDS:
        print(f"{len(rows)} timed rows of overlapped products: too few to fit to", file=sys.stderr)
        return 1
    of_both = {apart: held_out(rows, asked.gpu, apart) for apart in (False, True)}
    print("held out, by one fit for all ranks:", json.dumps(of_both[False]._asdict()))
    print("held out, by a fit for each number:", json.dumps(of_both[True]._asdict()))
    apart = of_both[True].loss < of_both[False].loss
    print(f"taken: {'a fit for each number' if apart else 'one fit for all ranks'}")
    ways = ways_of(rows, apart)
    before = fitted.of(asked.gpu)
    print("by the fit before:", json.dumps(judged([(before, rows)], asked.gpu)._asdict()))
    for (language, op), of_worlds in ways.ways.items():
        for way in of_worlds:
            of = [
                r
                for r in rows
                if (r.language, r.case.op) == (language, op)
                and ways.way(language, op, r.case.world) == way
            ]
            worst = max(abs(math.expm1(off(ways, row))) for row in of)
            print(f"{language} {op}: {way}, {len(of)} rows, the worst {100 * worst:.1f} % off")
    in_one_shot = timed(read_rows, asked.gpu, ONE_SHOT)
    one_shot = {**before.one_shot, **besides_us(in_one_shot, rows)}
    print(f"one_shot: {one_shot or 'assumed'} us besides, {len(in_one_shot)} rows")
    if not asked.check:
        path = fitted.path_of(asked.gpu)
        path.write_text(json.dumps(as_json(rows, ways, one_shot), indent=2) + "\n")
        fitted.of.cache_clear()
        print(f"written: {path}")
    return 0


def as_json(
    rows: Sequence[Timed], ways: fitted.Fitted, one_shot: Mapping[str, float]
) -> dict[str, Any]:
    """What fitted.of reads."""
    by_language: dict[str, dict[str, Any]] = {}
    for (language, op), of_worlds in ways.ways.items():
        by_language.setdefault(language, {})[op] = [
            {name: round(value, 3) for name, value in asdict(way).items()} for way in of_worlds
        ]
    return {
        "fitted_to": f"{len(rows)} rows of {len({row.case for row in rows})} cases",
        "ways": by_language,
        **({"one_shot": dict(one_shot)} if one_shot else {}),
    }


if __name__ == "__main__":
    sys.exit(main())
