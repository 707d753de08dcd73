"""``tcgemm bench --several``: sets up the ranks, runs the cases, and keeps the rows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import OperandError, ResultsError
from .cases import CHECKED, ROWS, SEVERAL, Case, append, append_stamps, read, suite

NO_MULTICAST = {
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1",
}  # fmt: skip
"""NVLink multicast is used by nobody here: what is compared runs wherever peers see each other."""

PATIENCE = timedelta(seconds=300)
"""After which a rank that waits for another one gives up."""


def several(
    shapes: Sequence[str],
    dtypes: Sequence[str],
    languages: Sequence[str],
    out: Path | None,
    *,
    seed: int,
    budget_s: float,
    resume: bool,
    rows: Sequence[int] = (),
    timeline: bool = False,
) -> None:
    """Verify and time every case over the ranks that torchrun started; rank 0 keeps the rows.

    Without a GPU small cases are verified over gloo, and nothing is timed.

    Args:
        rows: values of M, of which the suite has five.
        timeline: keep the clock stamps of one call of each case and overlapped language as well.

    Raises:
        OperandError: not started by torchrun, or sizes that the ranks do not divide.
        ResultsError: the folder is of another schema or GPU.
    """
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise OperandError(
            "--several runs on several ranks, and nobody started them: "
            "torchrun --nproc-per-node GPUS -m tcgemm bench --several"
        )
    # Before torch is imported, so that mistakes are named at once.
    cases = suite(int(os.environ["WORLD_SIZE"]), dtypes, shapes, rows or ROWS)
    os.environ.update(NO_MULTICAST)
    import torch
    import torch.distributed as dist

    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if cuda and torch.cuda.device_count() <= local:
        raise OperandError(
            f"rank {local} of this host has no GPU, there are {torch.cuda.device_count()}: start "
            "as many ranks as GPUs with --nproc-per-node"
        )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=PATIENCE)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        if not cuda and not shapes:
            cases = suite(dist.get_world_size(), dtypes, [_divided(text) for text in CHECKED])
        _run(
            cases, device, languages, out,
            seed=seed, budget_s=budget_s, resume=resume, timeline=timeline,
        )  # fmt: skip
    finally:
        dist.destroy_process_group()


def _divided(shape: str) -> str:
    """A shape of CHECKED whose N and K divide by any number of ranks."""
    import torch.distributed as dist

    M, N, K = map(int, shape.split("x"))
    world = dist.get_world_size()
    return f"{M}x{N * world}x{K * world}"


def _run(
    cases: Sequence[Case],
    device: Any,
    languages: Sequence[str],
    out: Path | None,
    *,
    seed: int,
    budget_s: float,
    resume: bool,
    timeline: bool,
) -> None:
    import torch.distributed as dist

    from ...dist.groups import ranks_of
    from .. import environment
    from . import run

    began = time.monotonic()
    ranks = ranks_of()
    first = ranks.rank == 0
    environment.set_precision()
    folder = out or Path("reports") / f"{environment.slug()}-x{ranks.world}"
    name = environment.run_id()
    done: set[tuple[str, ...]] = set()
    problem: list[Any] = [None]
    if first:
        try:
            done = {_key(row) for row in read(folder)} if resume else set()
            _begin(folder, name, ranks.world)
        except ResultsError as error:
            problem = [str(error)]
    dist.broadcast_object_list(problem, group=ranks.group)
    if problem[0]:
        raise ResultsError(problem[0])
    told = [done]
    dist.broadcast_object_list(told, group=ranks.group)
    timed = device.type == "cuda"
    backend = None if timed else "cublas"
    languages = languages or run.LANGUAGES
    if timed:
        run.compile_ahead(ranks, languages, cases, timeline)
        if first:
            print(f"{time.monotonic() - began:.0f} s: compiled", flush=True)
    trouble = 0
    for number, case in enumerate(cases, start=1):
        of_case = {name: str(getattr(case, name)) for name in Case.__slots__} | {"seed": str(seed)}
        if {_key({**of_case, "contender": name}) for name in run.kept(languages)} <= told[0]:
            continue
        rows, stamps = run.run_case(
            case, ranks, device, seed=seed, budget_s=budget_s, backend=backend,
            languages=languages, timed=timed, timeline=timeline,
        )  # fmt: skip
        if first:
            append(folder, [{"run": name, **row} for row in rows])
            if stamps:
                append_stamps(folder, [{"run": name, **row} for row in stamps])
            for row in rows:
                trouble += row["status"] in ("wrong", "failed")
                seconds = time.monotonic() - began
                print(f"{seconds:.0f} s: {number}/{len(cases)} {case}: {_line(row)}", flush=True)
    if first:
        print(f"Results: {folder / 'several.csv'}")
    counts = [trouble]
    dist.broadcast_object_list(counts, group=ranks.group)
    if counts[0]:
        sys.exit(1)


KEY = ("world", "op", "M", "N", "K", "dtype", "contender", "seed")


def _key(row: Any) -> tuple[str, ...]:
    return tuple(row[name] for name in KEY)


def _begin(folder: Path, run: str, world: int) -> None:
    """Put the facts of the run beside those of others of the same GPU and number of ranks."""
    import json

    from ...files import locked, write_whole
    from .. import environment, store

    read(folder)
    facts = environment.collect(sys.argv) | {
        "world": world, "no_multicast": sorted(NO_MULTICAST),
        "nccl": _nccl(),
    }  # fmt: skip
    for of in store.read_environment(folder).values():
        if (of.get("gpu_slug"), of.get("world")) != (facts["gpu_slug"], world):
            raise ResultsError(
                f"{folder} holds results of {of.get('gpu_slug')} x {of.get('world')}, and this is "
                f"{facts['gpu_slug']} x {world}: choose another folder with --out"
            )
    path = folder / store.ENVIRONMENT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / SEVERAL):
            runs = store.read_environment(folder) | {run: facts}
            write_whole(path, json.dumps(runs, indent=2) + "\n")
    except OSError as error:
        raise ResultsError(f"{folder} cannot be written ({error.strerror})") from None


def _nccl() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _line(row: dict[str, Any]) -> str:
    name = f"{row['contender']} ({row['way']})" if row["contender"] == "planned" else (
        row["contender"]
    )  # fmt: skip
    if row["status"] != "ok":
        return f"{name} {row['status']}: {row['reason']}"
    if not row.get("ms_p50"):
        return f"{name} right, {row['error_ratio']:.2g} of its bound; not timed"
    over_torch = f", {row['ratio_torch']:.2f} torch's" if row["ratio_torch"] else ""
    return (
        f"{name} {row['ms_p50']:.4g} ms, {row['ratio_nccl']:.2f} times NCCL + cuBLAS{over_torch}, "
        f"{100 * row['of_limit']:.0f} % of the limit"
    )
