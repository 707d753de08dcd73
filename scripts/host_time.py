"""Host time of repeated calls on a GPU, beside torch's, and of first calls of new shapes.

    python scripts/host_time.py [--out FILE.csv] [--first]

A repeated call is timed until it returns: 400 calls back to back, then a wait for the GPU, of each
contender in turns. A product of 512 cubed takes the GPU less than the host needs, so that the queue
never fills. With --first: one call each of 24 shapes that this process has not seen, after one that
has loaded the same kernels.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch

import tcgemm

CALLS, ROUNDS = 400, 25


def contenders() -> dict[str, dict[str, object]]:
    """Kind of call -> who makes it -> a function without arguments; the first is torch's."""
    made: dict[str, dict[str, object]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b, c = (torch.randn(512, 512, device="cuda").to(dtype) for _ in range(3))
        out, bias = torch.empty_like(a), torch.randn(512, device="cuda").to(dtype)
        name = str(dtype).removeprefix("torch.")
        kinds = {
            "matmul": (lambda a=a, b=b: torch.mm(a, b), {}),
            "matmul out": (lambda a=a, b=b, o=out: torch.mm(a, b, out=o), {"out": out}),
            "gemm with C": (lambda a=a, b=b, c=c: torch.addmm(c, a, b), {"c": c, "beta": 1.0}),
            "gemm with bias": (lambda a=a, b=b, s=bias: torch.addmm(s, a, b), {"bias": bias}),
        }
        for kind, (theirs, asked) in kinds.items():
            call = tcgemm.matmul if kind.startswith("matmul") else tcgemm.gemm
            row: dict[str, object] = {"torch": theirs}
            for backend in ("triton", "cuda"):
                row[backend] = lambda call=call, a=a, b=b, backend=backend, asked=asked: call(
                    a, b, backend=backend, **asked
                )
            made[f"{name} {kind}"] = row
    return made


def repeated() -> list[tuple[str, str, float, float]]:
    """(kind, who, least and median microseconds of a call)."""
    rows = []
    for kind, row in contenders().items():
        times: dict[str, list[float]] = {who: [] for who in row}
        for call in row.values():
            for _ in range(50):
                call()  # type: ignore[operator]
        for turn in range(ROUNDS):
            for who in list(row)[:: 1 if turn % 2 else -1]:
                call = row[who]
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(CALLS):
                    call()  # type: ignore[operator]
                times[who].append((time.perf_counter() - began) / CALLS * 1e6)
                torch.cuda.synchronize()
        rows += [(kind, who, min(t), statistics.median(t)) for who, t in times.items()]
    return rows


def first() -> list[tuple[str, str, float, float]]:
    """(shapes, backend, least and median milliseconds of the first call of a shape)."""
    rows = []
    draw = random.Random(5)
    sizes = [[draw.randrange(64, 4096) // 8 * 8 for _ in range(3)] for _ in range(24)]
    for backend in ("triton", "cuda"):
        times = []
        for M, N, K in sizes:
            a = torch.randn(M, K, device="cuda").bfloat16()
            b = torch.randn(N, K, device="cuda").bfloat16().mT
            torch.cuda.synchronize()
            began = time.perf_counter()
            tcgemm.matmul(a, b, backend=backend)
            times.append((time.perf_counter() - began) * 1e3)
            torch.cuda.synchronize()
            print(f"{backend:8}{M:6}{N:6}{K:6}{times[-1]:10.2f} ms")
        rows.append(("first call of a shape (ms)", backend, min(times), statistics.median(times)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", help="a CSV for the rows")
    parser.add_argument("--first", action="store_true", help="first calls of new shapes instead")
    given = parser.parse_args()
    rows = first() if given.first else repeated()
    lines = ["call,who,min,median", *(f"{k},{w},{low:.2f},{mid:.2f}" for k, w, low, mid in rows)]
    print("\n".join(lines))
    if given.out:
        with open(given.out, "w") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
