"""What a layer costs the host, forward and backward, beside torch's own.

    python scripts/host_time_of_layers.py                              # on a CPU, 4 x 4 x 4
    python scripts/host_time_of_layers.py --backend triton --size 64   # on a GPU
    python scripts/host_time_of_layers.py --backend triton --size 1024 --compiled --graphs

It prints how many functions of Python and of C one call makes, how many microseconds pass until the
call is back (on a GPU that is not until the kernel is done), and the ratio to torch's: the least of
many rounds, in which all take turns. With --without-kernels tcgemm's launches start nothing, which
leaves what surrounds them on a GPU; torch's calls are whole. A batch has three dimensions, as in a
model. --compiled adds the layers under torch.compile.
--graphs replays forward and backward of each from a CUDA graph, which is the GPU's time alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

import tcgemm
from tcgemm import launch_cache

ROUNDS, CALLS = 100, 20


def cases(
    size: int, backend: str, device: str, compiled: bool = False
) -> dict[str, tuple[Callable[[], object], str]]:
    """Name -> (what is called, the name of what it is compared with)."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, weight = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    bias = torch.randn(size, device=device, dtype=dtype)
    above, batch = torch.ones_like(x), torch.randn(2, size // 2, size, device=device, dtype=dtype)
    parameters = [t.requires_grad_() for t in (x, weight, bias, batch)]
    torchs = torch.nn.Linear(size, size, device=device, dtype=dtype)
    ours = tcgemm.nn.Linear(size, size, device=device, dtype=dtype, backend=backend)
    calls: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
        "F.linear": (lambda: torch.nn.functional.linear(x, weight, bias), ""),
        "tcgemm.linear": (lambda: tcgemm.linear(x, weight, bias, backend=backend), "F.linear"),
        "torch.nn.Linear": (lambda: torchs(x), ""),
        "tcgemm.nn.Linear": (lambda: ours(x), "torch.nn.Linear"),
        "torch.nn.Linear of a batch": (lambda: torchs(batch).view_as(above), ""),
        "tcgemm.nn.Linear of a batch": (
            lambda: ours(batch).view_as(above),
            "torch.nn.Linear of a batch",
        ),
        "a @ b": (lambda: x @ weight, ""),
        "tcgemm.matmul": (lambda: tcgemm.matmul(x, weight, backend=backend), "a @ b"),
    }

    def without(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            with torch.no_grad():
                call()

        return run

    def trained(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            call().backward(above)
            for leaf in (*parameters, *torchs.parameters(), *ours.parameters()):
                leaf.grad = None

        return run

    low = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16

    def mixed(layer: torch.nn.Module) -> torch.Tensor:
        with torch.autocast(device, low):
            result: torch.Tensor = layer(x)
        return result.to(dtype)

    calls["torch.nn.Linear under autocast"] = lambda: mixed(torchs), ""
    calls["tcgemm.nn.Linear under autocast"] = (
        lambda: mixed(ours), "torch.nn.Linear under autocast",
    )  # fmt: skip
    if compiled:
        torch_program, program = torch.compile(torchs), torch.compile(ours)
        calls["torch.nn.Linear compiled"] = lambda: torch_program(x), ""
        calls["tcgemm.nn.Linear compiled"] = lambda: program(x), "torch.nn.Linear compiled"
    made: dict[str, tuple[Callable[[], object], str]] = {}
    for way, put in (("forward alone", without), ("forward and backward", trained)):
        for name, (call, beside) in calls.items():
            made[f"{name}, {way}"] = put(call), f"{beside}, {way}" if beside else ""
    return made


def counted(call: Callable[[], object]) -> tuple[int, int]:
    """Functions of Python, and of C, that one call enters."""
    found = {"call": 0, "c_call": 0}

    def count(frame: object, event: str, argument: object) -> None:
        if event in found:
            found[event] += 1

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found["call"] - 1, found["c_call"] - 1


def timed(calls: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Microseconds of each: the least of the rounds. On a CPU it is the process's own time."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = clock()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], 1e6 * (clock() - start) / CALLS)
    return least


def replayed(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds of the GPU for each, captured in a CUDA graph: the least of the rounds."""
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            call()
    least = dict.fromkeys(calls, float("inf"))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            start.record()
            for _ in range(CALLS):
                graph.replay()
            end.record()
            end.synchronize()
            least[name] = min(least[name], 1e3 * start.elapsed_time(end) / CALLS)
    return least


def nothing(*operands: object) -> None:
    """What a launch starts without kernels."""


def start_nothing() -> None:
    """Let every launch that is kept do nothing from now on, of its operands' addresses, as it
    reads them on a GPU."""
    for launch in launch_cache.launches.values():
        launch.starts = [nothing for _ in launch.starts]
        launch.start = nothing if launch.start else None
        launch.by_address = launch.start is not None


def main() -> None:
    """Read the flags, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="cublas", choices=("cublas", "triton", "cuda"))
    parser.add_argument("--size", type=int, default=4, help="M, N and K")
    parser.add_argument("--without-kernels", action="store_true")
    parser.add_argument(
        "--compiled", action="store_true", help="the layers under torch.compile too"
    )
    parser.add_argument("--graphs", action="store_true", help="from CUDA graphs too: on a GPU")
    asked = parser.parse_args()
    if asked.graphs and not torch.cuda.is_available():
        parser.error("--graphs needs a GPU")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    made = cases(asked.size, asked.backend, device, asked.compiled)
    for call, _ in made.values():
        for _ in range(50):
            call()
    if asked.without_kernels:
        start_nothing()
    calls = {name: call for name, (call, _) in made.items()}
    least = timed(calls, device)
    print("| call | Python calls | C calls | us | beside torch |\n|---|---|---|---|---|")
    for name, (call, beside) in made.items():
        python, c = counted(call)
        print(f"| {name} | {python} | {c} | {least[name]:.1f} | {ratio(least, name, beside)} |")
    if asked.graphs:
        trained = {name: call for name, call in calls.items() if name.endswith("backward")}
        trained = {name: call for name, call in trained.items() if "compiled" not in name}
        least = replayed(trained)
        print("\n| from a CUDA graph | us | beside torch |\n|---|---|---|")
        for name in trained:
            print(f"| {name} | {least[name]:.1f} | {ratio(least, name, made[name][1])} |")


def ratio(least: dict[str, float], name: str, beside: str) -> str:
    """How many times as long as what it is compared with."""
    return f"{least[name] / least[beside]:.2f}" if beside else ""


if __name__ == "__main__":
    main()
