"""Grades .py files, each in a process of its own: Triton in its interpreter, models as functions.

``python -m tcgemm.tools.exercise.python NAME FILE`` prints the failures as a JSON list.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from types import FunctionType
from typing import Any

from .elements import wrong_elements

TIMEOUT_S = 60


def failures(name: str, path: Path) -> list[str]:
    """What is wrong with a solution of the exercise ``name``, in sentences; [] where it passes."""
    command = [sys.executable, "-m", __name__, name, str(path)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return [f"no result within {TIMEOUT_S} s"]
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == 0 and last.startswith("["):
        return [str(each) for each in json.loads(last)]
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    lines = re.findall(rf'{re.escape(path.name)}", line (\d+)', done.stderr)
    return [f"it raises{f' at line {lines[-1]}' if lines else ''}: {said}"]


def _grouped_order(m: dict[str, Any]) -> Iterator[str]:
    for tiles_m, tiles_n, group in ((8, 8, 4), (5, 7, 4), (3, 9, 8), (16, 2, 1)):
        tiles = [tuple(m["place"](i, tiles_m, tiles_n, group)) for i in range(tiles_m * tiles_n)]
        every = {(i, j) for i in range(tiles_m) for j in range(tiles_n)}
        if set(tiles) != every:
            missing = len(every - set(tiles))
            yield f"{tiles_m} x {tiles_n} tiles in groups of {group}: {missing} are never visited"
            return
    flight = [tuple(m["place"](i, 32, 32, 8)) for i in range(64)]
    strips = len({i for i, _ in flight}) + len({j for _, j in flight})
    if strips > 16:
        yield f"64 tiles in flight read {strips} strips of A and B, where 16 would do"
    if flight[:3] != [(0, 0), (1, 0), (2, 0)]:
        yield f"the first three tiles are {flight[:3]}, and not down a column"


def _swizzle(m: dict[str, Any]) -> Iterator[str]:
    for row in range(64):
        if sorted(m["place"](row, unit) for unit in range(8)) != list(range(8)):
            places = [m["place"](row, unit) for unit in range(8)]
            yield f"row {row}: units 0 to 7 are stored at {places}, not once at each of 0 to 7"
            return
    for unit in range(8):
        for first in range(0, 64, 8):
            met = len({m["place"](row, unit) for row in range(first, first + 8)})
            if met < 8:
                groups = f"{met} of 8 groups of banks"
                yield f"unit {unit} of eight rows lies in {groups}: {8 // met} passes"
                return


def _num_stages(m: dict[str, Any]) -> Iterator[str]:
    cases = (
        ((128, 256, 64), 4), ((128, 128, 64), 7), ((64, 64, 128, 1), 14), ((256, 256, 128, 4), 0),
        ((128, 256, 64, 2, 65536), 3), ((128, 256, 64, 2, 32768), 4), ((64, 64, 64, 2, 262144), 0),
    )  # fmt: skip
    for case, right in cases:
        got = m["num_stages"](*case)
        if got != right:
            yield f"num_stages{case} is {got}, and {right} fit"
            return


def _roofline(m: dict[str, Any]) -> Iterator[str]:
    checks = (
        ("intensity(4096, 4096, 4096)", 4096 / 3),
        ("intensity(1, 4096, 4096)", 2 * 4096**2 / (2 * (4096 + 4096**2 + 4096))),
        ("ridge(989.4, 4800)", 206.125),
        ("least_us(4096, 4096, 4096, 989.4, 4800)", 2 * 4096**3 / 989.4e6),
        ("least_us(16, 4096, 4096, 989.4, 4800)", 2 * (4096**2 + 2 * 16 * 4096) / 4.8e6),
    )
    for call, right in checks:
        got = eval(call, m)
        if not abs(got - right) <= 1e-6 * right:
            yield f"{call} is {got:.6g}, and should be {right:.6g}"
            return


def _waves(m: dict[str, Any]) -> Iterator[str]:
    tiles = [(128, 256), (128, 128), (192, 128), (64, 256)]
    for M, N in ((3072, 3072), (4096, 4096), (2048, 2048), (1024, 1024), (4096, 2112)):
        times = {t: ceil(ceil(M / t[0]) * ceil(N / t[1]) / 132) * t[0] * t[1] for t in tiles}
        got = tuple(m["best_tile"](M, N, tiles))
        if times.get(got, 10**9) > min(times.values()):
            best = min(times, key=lambda tile: times[tile])
            yield f"{M} x {N}: {got} takes {times.get(got)}, {best} {times[best]}"
            return


def _k_tail(m: dict[str, Any]) -> Iterator[str]:
    wrong = list(_product(m, ((32, 32, 32), (33, 40, 33), (17, 9, 65))))
    yield from wrong or _not_compiled(m)


def _accumulator(m: dict[str, Any]) -> Iterator[str]:
    import torch

    # 2048 from the first 32 of K, then 1 from each 32: 2048 + 32.
    a, b = torch.zeros(16, 33 * 32).half(), torch.ones(33 * 32, 16).half()
    a[:, ::32] = 1
    a[:, :32] = 64
    c = m["matmul"](a, b)
    if not bool((c == 2080).all()):
        yield f"2048 and 32 ones are summed to {c.flatten()[0].item():g}"
        return
    # 2049 from the first 32 of K, which a float16 cannot hold, then -1.
    a = torch.zeros(16, 64).half()
    a[:, :32] = 64
    a[:, 0], a[:, 32] = 65, -1
    c = m["matmul"](a, torch.ones(64, 16).half())
    if not bool((c == 2048).all()):
        yield (
            f"2049 and -1 are summed to {c.flatten()[0].item():g}: the product of a block of K is "
            "narrowed before it is added"
        )
        return
    wrong = list(_product(m, ((33, 40, 33),)))
    yield from wrong or _not_compiled(m)


OF_FILE = """
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("exercise", {path!r})
module = module_from_spec(spec)
spec.loader.exec_module(module)


def run(a, b, c):
    module.matmul(a, b)
"""


def _not_compiled(m: dict[str, Any]) -> Iterator[str]:
    """What Triton's compiler says against the file. Its interpreter lets types change in a loop."""
    import tempfile
    from importlib import import_module
    from types import SimpleNamespace

    of_file = import_module("tcgemm.triton_kernels.inspection.of_file")
    problem = SimpleNamespace(
        M=64, N=64, K=64, dtype_in="float16", dtype_out="float16", layout="nn", capability=(9, 0)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exercise.py"
        path.write_text(OF_FILE.format(path=m["__file__"]))
        try:
            of_file.inspect_file(path, problem, False)
        except RuntimeError as error:
            said = str(error).partition("stopped: ")[2] or str(error)
            yield f"C is right in Triton's interpreter, but Triton does not compile it: {said}"


def _product(m: dict[str, Any], shapes: tuple[tuple[int, int, int], ...]) -> Iterator[str]:
    import torch

    for M, N, K in shapes:
        generator = torch.Generator().manual_seed(M + N + K)
        a = torch.full((M, K + 32), float("nan")).half()[:, :K]
        b = torch.full((K + 32, N), float("nan")).half()[:K]
        a.copy_(torch.randn(M, K, generator=generator))
        b.copy_(torch.randn(K, N, generator=generator))
        if said := wrong_elements(a, b, m["matmul"](a, b)):
            yield said
            return


GRADERS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "grouped_order": _grouped_order,
    "swizzle": _swizzle,
    "num_stages": _num_stages,
    "roofline": _roofline,
    "waves": _waves,
    "k_tail": _k_tail,
    "accumulator": _accumulator,
}
"""Exercise -> its checks, of the names that the file defines."""


def main() -> None:
    import importlib.util

    name, path = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("exercise", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        failed = list(GRADERS[name](_returning(vars(module))))
    except NothingReturned as error:
        failed = [str(error)]
    except KeyError as error:
        if error.args[0] in vars(module):
            raise
        failed = [f"the file defines no function {error.args[0]!r}"]
    print(json.dumps(failed))


class NothingReturned(Exception):
    """A function of the file returned None."""


def _returning(names: dict[str, Any]) -> dict[str, Any]:
    """The file's names, its functions such that None is an error that says so."""

    def loud(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            result = function(*args)
            if result is None:
                plain = all(isinstance(arg, int | float) for arg in args)
                given = ", ".join(map(repr, args)) if plain else "..."
                raise NothingReturned(f"{name}({given}) returns None: is a return missing?")
            return result

        return call

    return {
        name: loud(name, value) if isinstance(value, FunctionType) else value
        for name, value in names.items()
    }


if __name__ == "__main__":
    main()
