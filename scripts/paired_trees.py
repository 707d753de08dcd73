"""What a user gets in two checkouts of this project, timed in turns on one GPU.

    git worktree add ../before COMMIT
    python scripts/paired_trees.py ../before [--backend cuda] [--out pairs.csv] [--seconds 300]

Each tree has a process of its own, with caches of its own. They take turns, so that clock and heat
are the same for both, and each round is a pair. A product runs in a CUDA graph: alone, and below
100 us also among others, with torch's ``neg`` of C behind each, whose own time is taken off. A row
is a case: medians in microseconds, the ratio (time before over time now; above 1 is faster now),
and the error of each against float64. The geometric mean and the lowest ratios end it. Needs a GPU;
``--check`` makes a small product on a CPU as well, and times nothing.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9
REPLAYS = 3
"""Replays in a round, of which the median counts."""
GRAPH_MS = 2.5
"""Milliseconds of a graph, about."""
SHORT_MS = 0.1
AT_ONCE = 8
"""Processes of a tree that build and compile ahead."""
FIELDS = (
    "backend", "M", "N", "K", "layout", "dtype", "fused", "batch", "among", "us_before", "us_now",
    "ratio_p20", "ratio_p50", "ratio_p80", "pairs", "error_before", "error_now",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A product; ``fused`` is empty, "bias gelu" or "residual" (beta = 1)."""

    backend: str
    M: int
    N: int
    K: int
    layout: str = "nn"
    dtype: str = "bfloat16"
    fused: str = ""
    batch: int = 0


FEW_ROWS = (
    (1, 8192, 8192), (16, 4096, 4096), (64, 4096, 14336), (128, 8192, 8192), (512, 3072, 3072),
    (256, 6144, 4096), (32, 28672, 8192),
)  # fmt: skip
ODD = (
    (100, 100, 100), (128, 128, 128), (1000, 1000, 1000), (1001, 1003, 999), (4096, 4096, 4100),
)  # fmt: skip
LAYERS = ((8192, 3072, 768), (8192, 768, 3072), (2048, 14336, 4096), (4096, 6144, 4096))


def cases(backend: str) -> list[Case]:
    """Squares, few rows, layers, other types, odd sizes, what is fused, a batch."""
    squares = [
        Case(backend, n, n, n, layout)
        for n in (512, 1024, 2048, 4096, 8192)
        for layout in ("nn", "nt")
    ]
    of_users = [Case(backend, *shape, "nt") for shape in (*FEW_ROWS, *LAYERS)]
    types = [Case(backend, 4096, 4096, 4096, "nt", each) for each in ("int8", "float8_e4m3fn")]
    types += [Case(backend, 2048, 2048, 2048, "nn", each) for each in ("float64", "float32")]
    return [
        *squares, *of_users, *types, *(Case(backend, *shape) for shape in ODD),
        Case(backend, 4096, 4096, 4096, "tn"), Case(backend, 4096, 4096, 4096, "nn", "float16"),
        Case(backend, 4096, 4096, 4096, "nt", fused="bias gelu"),
        Case(backend, 2048, 2048, 2048, fused="residual"), Case(backend, 512, 512, 512, batch=16),
    ]  # fmt: skip


class Packages(MetaPathFinder):
    """Finds the project's packages in a checkout, where its pyproject.toml says that they are."""

    def __init__(self, tree: Path) -> None:
        project = tomllib.loads((tree / "pyproject.toml").read_text())
        self.folders = {"tcgemm": tree / "tcgemm"}
        for name, folder in project["tool"]["setuptools"]["package-dir"].items():
            self.folders[name] = tree / folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        folder = self.folders.get(name)
        if folder is None:
            return None
        init = folder / "__init__.py"
        if not init.exists():
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(folder)]
            return spec
        return importlib.util.spec_from_file_location(
            name, init, submodule_search_locations=[str(folder)]
        )


class Product:
    """A case's operands and the call that a user would write."""

    def __init__(self, case: Case) -> None:
        import torch

        import tcgemm

        device = "cuda" if torch.cuda.is_available() else "cpu"
        generator = torch.Generator().manual_seed(0)
        dtype = getattr(torch, case.dtype)
        batch = (case.batch,) if case.batch else ()

        def matrix(rows: int, columns: int, stored: str = "n") -> torch.Tensor:
            shape = (rows, columns) if stored == "n" else (columns, rows)
            if dtype.is_floating_point:
                made = torch.randn(*batch, *shape, generator=generator)
            else:
                made = torch.randint(-8, 8, (*batch, *shape), generator=generator)
            made = made.to(device).to(dtype)
            return made if stored == "n" else made.mT

        self.a = matrix(case.M, case.K, case.layout[0])
        self.b = matrix(case.K, case.N, case.layout[1])
        asked: dict[str, Any] = {"backend": case.backend}
        if case.fused == "bias gelu":
            asked |= {"bias": matrix(1, case.N)[0], "epilogue": "gelu"}
        elif case.fused:
            asked |= {"c": matrix(case.M, case.N), "beta": 1.0}
        self.asked = asked
        run = tcgemm.gemm if case.fused else tcgemm.matmul
        self.out = run(self.a, self.b, **asked)
        self.call: Callable[[], object] = lambda: run(self.a, self.b, out=self.out, **asked)

    def error(self) -> float:
        """Of the second and later calls, relative, against float64."""
        import torch

        for _ in range(3):
            self.call()
        exact = self.a.double() @ self.b.double()
        if "epilogue" in self.asked:
            exact = torch.nn.functional.gelu(exact + self.asked["bias"].double())
        elif "c" in self.asked:
            exact += self.asked["c"].double()
        return float((self.out.double() - exact).norm() / exact.norm())


class Timer:
    """A product's graphs, replayed and timed by events."""

    def __init__(self, product: Product) -> None:
        import torch

        self.torch, self.product = torch, product
        once = self._replays(self._graph(4, product.call), 4)
        self.count = max(2, min(200, int(GRAPH_MS / max(once, 0.002))))
        beside = torch.empty_like(product.out)

        def foreign() -> None:
            torch.neg(product.out, out=beside)

        def both() -> None:
            product.call()
            foreign()

        self.graphs = {"alone": self._graph(self.count, product.call)}
        if once < SHORT_MS and product.out.is_floating_point():
            self.graphs |= {"graph": self._graph(self.count, both)}
            self.foreign = self._graph(self.count, foreign)

    def microseconds(self, among: str) -> float:
        """Of a product, the median of REPLAYS replays."""
        took = self._replays(self.graphs[among], self.count)
        if among != "alone":
            took -= self._replays(self.foreign, self.count)
        return 1e3 * took

    def _graph(self, count: int, call: Callable[[], object]) -> Any:
        side = self.torch.cuda.Stream()
        side.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(side):
            call()
        self.torch.cuda.current_stream().wait_stream(side)
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graph.replay()
        return graph

    def _replays(self, graph: Any, count: int) -> float:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        took = []
        for _ in range(REPLAYS):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            took.append(start.elapsed_time(end) / count)
        return statistics.median(took)


def serve() -> None:
    """One tree's process: a question a line on stdin, an answer a line on stdout."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no answer
    timer: Timer | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "case" in asked:
                timer = None  # its memory goes first
                product = Product(Case(**asked["case"]))
                answer: dict[str, Any] = {"error": product.error()}
                if asked["times"]:
                    timer = Timer(product)
                    answer["among"] = list(timer.graphs)
            else:
                assert timer is not None
                answer = {"us": timer.microseconds(asked["among"])}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers)


class Tree:
    """A checkout, and its process once it is asked for."""

    def __init__(self, tree: Path, caches: Path) -> None:
        self.tree = tree
        self.environment = os.environ | {
            "TCGEMM_CACHE_DIR": str(caches / "tcgemm"), "TRITON_CACHE_DIR": str(caches / "triton"),
        }  # fmt: skip

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, __file__, str(self.tree), "--serve"], env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.tree,
        )  # fmt: skip

    def build(self, these: list[Case]) -> None:
        """Make each product once, in several processes: what is compiled stays in the caches."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda n: self._build(these[n::AT_ONCE]), range(AT_ONCE)))

    def _build(self, these: list[Case]) -> None:
        process = self.start()
        for case in these:
            ask(process, case=asdict(case), times=False)
        process.communicate()


def ask(process: subprocess.Popen[str], **question: Any) -> dict[str, Any]:
    """The process's answer. Raises RuntimeError where it died."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a tree's process ended with {process.wait()}")
    return json.loads(line)  # type: ignore[no-any-return]


def rows_of(case: Case, before: Any, now: Any, times: bool) -> Iterator[dict[str, Any]]:
    """What the two make of a case, a row for each way of timing it."""
    answers = [ask(each, case=asdict(case), times=times) for each in (before, now)]
    failed = [answer["failed"] for answer in answers if "failed" in answer]
    if failed:
        print(f"{case}: {' / '.join(failed)}", file=sys.stderr)
        return
    errors = {f"error_{name}": f"{answer['error']:.2e}" for name, answer in
              zip(("before", "now"), answers, strict=True)}  # fmt: skip
    if not times:
        yield asdict(case) | errors
        return
    for among in [each for each in answers[0]["among"] if each in answers[1]["among"]]:
        pairs = []
        for turn in range(ROUNDS):
            order = (before, now) if turn % 2 else (now, before)
            took = {id(each): ask(each, among=among)["us"] for each in order}
            pairs.append((took[id(before)], took[id(now)]))
        ratios = sorted(b / n for b, n in pairs)
        at = {f"ratio_p{p}": f"{ratios[len(ratios) * p // 100]:.4f}" for p in (20, 50, 80)}
        medians = (statistics.median(of) for of in zip(*pairs, strict=True))
        us = {
            f"us_{name}": f"{median:.3f}"
            for name, median in zip(("before", "now"), medians, strict=True)
        }
        yield asdict(case) | errors | us | at | {"among": among, "pairs": len(pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--now", type=Path, default=ROOT)
    parser.add_argument("--backend", action="append", choices=("triton", "cuda"))
    parser.add_argument("--out", type=Path, default=Path("pairs.csv"))
    parser.add_argument("--caches", type=Path, default=Path("pairs-caches"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="of timing, for all cases")
    parser.add_argument("--skip", type=int, default=0, help="so many of the first cases")
    parser.add_argument("--check", action="store_true", help="results of small cases alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        sys.meta_path.insert(0, Packages(asked.before))
        serve()
        return
    backends = asked.backend or ["cuda", "triton"]
    turns = itertools.zip_longest(*(cases(backend) for backend in backends))
    these = [case for turn in turns for case in turn if case is not None][asked.skip :]
    if asked.check:
        these = [Case(backend, 33, 40, 24) for backend in backends]
    caches = asked.caches.resolve()
    trees = [Tree(path.resolve(), caches / name)
             for path, name in ((asked.before, "before"), (asked.now, "now"))]  # fmt: skip
    if not asked.check:
        for tree in trees:
            tree.build(these)
    end = time.monotonic() + asked.seconds
    before, now = (tree.start() for tree in trees)
    rows = []
    with asked.out.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for number, case in enumerate(these):
            if time.monotonic() > end:
                print(f"{len(these) - number} of {len(these)} cases were left", file=sys.stderr)
                break
            for row in rows_of(case, before, now, not asked.check):
                rows.append(row)
                table.writerow(row)
                file.flush()
    for process in (before, now):
        process.communicate()
    timed = sorted((row for row in rows if "ratio_p50" in row), key=lambda r: float(r["ratio_p50"]))
    if timed:
        mean = math.exp(statistics.mean(math.log(float(row["ratio_p50"])) for row in timed))
        print(f"{len(timed)} rows: geometric mean {mean:.3f}; the lowest:")
        for row in timed[:10]:
            print(f"  {row['ratio_p50']}  " + " ".join(str(row[name]) for name in FIELDS[:9]))


if __name__ == "__main__":
    main()
