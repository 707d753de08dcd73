"""Compile a rung for a GPU that is not there, and read what the compiler made of it.

Each rung's own ``arguments`` give the launch, so what is compiled here is what that problem would
run: the same specialization on strides, sizes and alignment. Operands are meta tensors (no
memory, address 0), the driver is a stand-in that names the target, and ptxas and nvdisasm come
with the Triton wheel. All of it happens in a child process, so that a parent whose kernels are
interpreted can ask as well.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..host.storage import UNIT

OPCODES = (
    "HGMMA",
    "IGMMA",
    "QGMMA",
    "HMMA",
    "IMMA",
    "DMMA",
    "FFMA",
    "UTMALDG",
    "UTMASTG",
    "LDGSTS",
    "LDG",
    "STG",
    "LDSM",
    "BAR",
    "LDL",
    "STL",
)
"""Instructions that always have a count, be it 0: wgmma (of 16-bit floats and tf32, of integers, of
8-bit floats), mma.sync (of floats, integers, float64), multiply-add on CUDA cores, TMA load and
store, cp.async, plain global load and store, ldmatrix, barriers, local-memory load and store
(spills)."""


@dataclass(frozen=True)
class Request:
    """One compilation: a rung, its plan, and the problem that fixes the specialization."""

    kernel: str
    plan: Mapping[str, int]
    dtype_in: str = "bfloat16"
    dtype_out: str = "bfloat16"
    layout: str = "nn"
    """Storage of A, B and, with a third letter, C: n is row-major, t column-major."""
    capability: tuple[int, int] = (9, 0)
    M: int = 4096
    N: int = 4096
    K: int = 4096
    compute: str = ""
    """How to form the product; with any of the following, a fused call. Empty: a plain one."""
    epilogue: str = ""
    bias: bool = False
    c_in: bool = False
    scales: str = ""
    """Of 8-bit floats: tensor or row."""
    aux: str = ""
    """Z [M, N], stored as C: "write" or "read". "sums": the sums of A's rows, [M]."""
    batch: int = 0
    """Products in one launch; 0: the operands are 2-D."""

    @property
    def fused(self) -> bool:
        """Whether the rung is given something to fuse."""
        asked = (self.compute, self.epilogue, self.bias, self.c_in, self.aux, self.scales)
        return any(asked)


@dataclass(frozen=True)
class Compiled:
    """What came out: resources of one program, and instruction counts of its SASS."""

    registers: int
    """Per thread."""
    spill_bytes: int
    """Stores to and loads from local memory that ptxas reports, per thread."""
    shared_bytes: int
    """Dynamic shared memory of one program."""
    serialized: bool
    """ptxas took the overlap out of wgmma (C7510, C7515, ...): its warning is in ``log``."""
    counts: Mapping[str, int]
    log: str
    assembly: Mapping[str, str] = field(default_factory=dict)
    """Texts by stage (ttgir, ptx, sass), where they were wanted."""
    seconds: float = 0.0
    """Of Triton's compiler, next to nothing where its own cache had the kernel."""


def compile_rungs(
    requests: Sequence[Request], *, assembly: bool = False, fresh: bool = False
) -> list[Compiled]:
    """Compile every request in one child process; no GPU needed. ``fresh``: past Triton's cache.

    Raises:
        RuntimeError: a compilation failed; the message carries the compiler's own.
    """
    package = __package__ or ""
    program = (
        "import sys, importlib; "
        f"importlib.import_module({package + '.compile_only'!r}).answer(sys.stdin, sys.stdout)"
    )
    child = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps({"requests": [asdict(r) for r in requests], "assembly": assembly}),
        env={
            **os.environ,
            "TRITON_INTERPRET": "0",
            **({"TRITON_ALWAYS_COMPILE": "1"} if fresh else {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"cross-compiling {len(requests)} kernels failed:\n{child.stderr}")
    return [Compiled(**result) for result in json.loads(child.stdout.splitlines()[-1])]


def answer(source: Any, sink: Any) -> None:
    """The child: requests as JSON from ``source``, results as one line of JSON to ``sink``."""
    from triton.runtime import driver

    task = json.load(source)
    # Triton compiles in this thread, one kernel at a time; ptxas and nvdisasm read behind it.
    with ThreadPoolExecutor(os.cpu_count()) as readers:
        pending, cubins = [], []
        for raw in task["requests"]:
            request = Request(**{**raw, "capability": tuple(raw["capability"])})
            driver.set_active(_Driver(request.capability))
            try:
                built, seconds = _compile(request)
            except Exception as error:
                raise RuntimeError(f"{request}: {error}") from error
            pending.append(readers.submit(_read, built, seconds, task["assembly"]))
            cubins.append((_arch(built), built.asm["cubin"]))
        counted = readers.submit(_counts, cubins)
        results = [future.result() for future in pending]
    for result, counts in zip(results, counted.result(), strict=True):
        result["counts"] = {**dict.fromkeys(OPCODES, 0), **counts}
    sink.write("\n" + json.dumps(results) + "\n")


class _Driver:
    """What the JIT asks of a driver before it compiles: the target, and a device number."""

    def __init__(self, capability: tuple[int, int]) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
        self.device = self.target.arch

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        # The JIT keeps compiled kernels by device: one number a target keeps them apart.
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0


def _compile(request: Request) -> tuple[Any, float]:
    """The compiled kernel, and the seconds that Triton took."""
    import torch

    rung = import_module(__package__.rpartition(".")[0]).module_of(request.kernel)
    dtype_in, dtype_out = getattr(torch, request.dtype_in), getattr(torch, request.dtype_out)
    letters = request.layout.ljust(3, "n")
    leading = (request.batch,) if request.batch else ()

    def operand(rows: int, columns: int, dtype: torch.dtype, letter: str) -> torch.Tensor:
        if letter == "n":
            return torch.empty(*leading, rows, columns, dtype=dtype, device="meta")
        return torch.empty(*leading, columns, rows, dtype=dtype, device="meta").mT

    def vector(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    a = operand(request.M, request.K, dtype_in, letters[0])
    b = operand(request.K, request.N, dtype_in, letters[1])
    c = operand(request.M, request.N, dtype_out, letters[2])
    across, swapped = request.plan.get("ACROSS"), request.plan.get("SWAP")
    if request.plan.get("REPACK"):
        # The rung multiplies copies, with K contiguous and rows in whole units of TMA.
        pitch = -(-request.K * a.itemsize // UNIT) * UNIT // a.itemsize
        if swapped or not across:
            a = operand(request.M, pitch, dtype_in, "n")[..., : request.K]
        if not (swapped and across):
            b = operand(pitch, request.N, dtype_in, "t")[..., : request.K, :]
    if request.compute == "tf32x3" and hasattr(rung, "repack_for_wgmma"):
        # The rung multiplies copies, of two terms each.
        if swapped or not across:
            a = torch.empty(2, request.M, request.K, dtype=dtype_in, device="meta")
        if not (swapped and across):
            b = torch.empty(2, request.N, request.K, dtype=dtype_in, device="meta").mT
    fused = {}
    if request.fused:
        rows = request.scales == "row"
        only_plain = request.plan.get("SPLITS", 1) > 1 or request.plan.get("ACROSS")
        fused["fusion"] = SimpleNamespace(
            compute=request.compute or "float32",
            alpha=1.0 if request.aux or only_plain else 0.5,
            beta=1.0 if request.c_in else 0.0,
            c=vector(request.M, dtype_out)
            if request.aux == "sums"
            else operand(request.M, request.N, dtype_out, letters[2])
            if request.c_in or request.aux
            else None,
            bias=vector(request.N, dtype_out) if request.bias else None,
            epilogue=request.epilogue,
            aux=request.aux,
            scale_a=vector(request.M if rows else 1) if request.scales else None,
            scale_b=vector(request.N if rows else 1) if request.scales else None,
        )
    grid, args, constants = rung.arguments(a, b, c, **fused, **request.plan)
    started = time.perf_counter()
    built = rung.kernel.warmup(*args, grid=grid, **constants)
    return built, time.perf_counter() - started


def _read(built: Any, seconds: float, assembly: bool) -> dict[str, Any]:
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        ptx.write_text(re.sub(r"\.file.*|\.loc.*", "", built.asm["ptx"]))
        log = _tool(_ptxas(built), "-v", f"--gpu-name={_arch(built)}", str(ptx), "-o", str(cubin))
        texts = {}
        if assembly:
            cubin.write_bytes(built.asm["cubin"])
            sass = _tool(knobs.nvidia.nvdisasm, "-c", "-ndf", str(cubin))
            lined = _tool(knobs.nvidia.nvdisasm, "-gi", "-c", "-ndf", str(cubin))
            texts = {
                "ttgir": built.asm["ttgir"], "ptx": built.asm["ptx"], "sass": sass, "lined": lined,
            }  # fmt: skip
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    return {
        "registers": int(re.search(r"Used (\d+) registers", log)[1]),  # type: ignore[index]
        "spill_bytes": sum(map(int, spills)),
        "shared_bytes": built.metadata.shared,
        "serialized": "serialize" in log,
        "log": log,
        "assembly": texts,
        "seconds": seconds,
    }


def _ptxas(built: Any) -> Any:
    """The assembler that Triton takes for the target, where it has two: from sm_100 on the newer
    one in Triton 3.6 and 3.7, from sm_90 on after them."""
    from triton import knobs
    from triton.backends.nvidia import compiler

    if not hasattr(knobs.nvidia, "ptxas_blackwell"):
        return knobs.nvidia.ptxas
    return compiler.get_ptxas(built.metadata.target.arch)


def _arch(built: Any) -> str:
    """What it was compiled for; sm_90 as sm_90a: wgmma and setmaxnreg exist there only."""
    return re.search(r"\.target\s+(\w+)", built.asm["ptx"])[1]  # type: ignore[index, no-any-return]


def _counts(cubins: Sequence[tuple[str, bytes]]) -> list[Counter[str]]:
    """The opcodes of each cubin's code, by one nvdisasm for each target.

    It takes a quarter of a second to start, as long as all the rest of a compilation; so it is
    given all code as one raw binary, and the lines are shared out by their addresses.
    """
    from triton import knobs

    counts: list[Counter[str]] = [Counter() for _ in cubins]
    for arch in sorted({each for each, _ in cubins}):
        target = arch.replace("sm_", "SM")
        parts = [(i, code(cubin)) for i, (each, cubin) in enumerate(cubins) if each == arch]
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            file.write(b"".join(part for _, part in parts))
            file.flush()
            sass = _tool(knobs.nvidia.nvdisasm, "-ndf", "-b", target, file.name)
        lines = [(int(at, 16), opcode) for at, opcode in _INSTRUCTION.findall(sass)]
        addresses, end = [at for at, _ in lines], 0
        for i, part in parts:
            start, end = end, end + len(part)
            mine = lines[bisect_left(addresses, start) : bisect_left(addresses, end)]
            counts[i] = Counter(opcode for _, opcode in mine)
    return counts


def code(cubin: bytes) -> bytes:
    """The machine code in a cubin, an ELF file of 64 bits: its sections ``.text...``."""
    at = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, number, of_names = struct.unpack_from("<3H", cubin, 0x3A)
    # Of a section: name, type, flags, address, offset, bytes, and what is not asked for here.
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(number)]
    names = sections[of_names][4]
    return b"".join(
        cubin[section[4] : section[4] + section[5]]
        for section in sections
        if cubin.startswith(b".text.", names + section[0])
    )


_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?!@!PT)(?:@!?\w+\s+)?(\w+)", re.MULTILINE)


def opcodes(sass: str) -> Counter[str]:
    """Instructions of a disassembly by opcode, without its modifiers.

    A read of nothing (``@!PT LDS RZ``), which ptxas puts before a cp.async, is no load.
    """
    return Counter(opcode for _, opcode in _INSTRUCTION.findall(sass))


def _tool(tool: Any, *arguments: str) -> str:
    done = subprocess.run([tool.path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool.path} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr
