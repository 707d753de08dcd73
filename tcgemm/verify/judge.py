"""A call made into tensors, run, and judged against results that no tensor core made.

Every operand lies in a buffer of its own whose other elements are NaN (or 77, or 0x5A...): a
kernel that reads beside its operand spoils its result, one that writes beside it is seen.
"""

from __future__ import annotations

import itertools
import math
import pickle
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import accuracy, dispatch
from ..accuracy import as_dtype, poisoned
from ..call import gemm
from ..epilogue import FUNCTIONS
from ..errors import OperandError, ResultsError, TcgemmError, UnsupportedError, first_line
from ..problem import Fusion
from .calls import DrawnCall, Stored, from_dict

GUARD = 256
"""Elements before and after each operand."""

LARGEST_TERM = 8
"""Integer C and bias are at most this large."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call."""

    status: str
    """ok, wrong, refused or failed."""
    error_ratio: float = 0.0
    """Worst error over its bound; 0 for integer operands, which must be exact."""
    exact_errors: int = 0
    """Elements that differ from the exact result."""
    reason: str = ""


@dataclass(slots=True)
class Made:
    """The tensors of a call."""

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    c: torch.Tensor | None
    bias: torch.Tensor | None
    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None
    buffers: dict[str, torch.Tensor]
    """Flat, by operand: A, B, out, C."""


def make(call: DrawnCall, device: torch.device | str = "cpu") -> Made:
    """The operands of a call, the same on every device."""
    generator = torch.Generator().manual_seed(call.seed)
    dtype_in, dtype_out = as_dtype(call.dtype_in), as_dtype(call.dtype_out)
    largest = None
    if call.exact:
        largest = max(1, accuracy.largest_integer(call.K, dtype_out, dtype_in, call.compute))
    term = LARGEST_TERM if call.exact else None
    of_c = (call.M, call.N)
    shapes = {"A": (call.M, call.K), "B": (call.K, call.N), "C": of_c, "out": of_c}
    buffers: dict[str, torch.Tensor] = {}

    def place(name: str, stored: Stored, dtype: torch.dtype, limit: int | None, fill: bool) -> Any:
        shape, strides, size = _strides(stored, shapes[name], call.batch)
        buffer = poisoned((size + stored.offset + 2 * GUARD,), torch.float64, "cpu")
        start = GUARD + stored.offset
        if fill:
            used = _elements(shape, strides, start)
            buffer[used] = _numbers(buffer.shape, dtype, generator, limit)[used]
        if not dtype.is_floating_point:
            buffer.nan_to_num_(nan=77.0)
        stored_as = buffer.to(dtype).to(device)
        buffers[name] = stored_as
        return stored_as.as_strided(shape, strides, start)

    a = place("A", call.a, dtype_in, largest, True)
    b = place("B", call.b, dtype_in, largest, True)
    out = place("out", call.out, dtype_out, term, call.c == "out")
    c = out if call.c == "out" else None
    if call.c in ("own", "row"):
        view = "sliced" if call.c == "own" else "expanded"
        c = place("C", Stored(view), dtype_out, term, True)
    bias = None
    if call.bias:
        bias = _numbers((2 * call.N,), dtype_out, generator, term).to(dtype_out).to(device)[::2]
    scale_a, scale_b = (
        None if not call.scales else _scale(n, call, generator).to(device) for n in (call.M, call.N)
    )
    _plant(call.special, a, b, c)
    return Made(a, b, out, c, bias, scale_a, scale_b, buffers)


def _elements(shape: tuple[int, ...], strides: tuple[int, ...], start: int) -> torch.Tensor:
    """Indices of a view's elements in its flat buffer, each at least once."""
    index = torch.tensor([start])
    for size, stride in zip(shape, strides, strict=True):
        index = (index[:, None] + torch.arange(size) * stride).flatten()
    return index


def _numbers(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, largest: int | None
) -> torch.Tensor:
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, shape, generator=generator).double()
    if largest is None:
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.randint(-largest, largest + 1, shape, generator=generator).double()


def _scale(size: int, call: DrawnCall, generator: torch.Generator) -> torch.Tensor:
    size = size if call.scales == "row" else 1
    if call.exact:
        return torch.randint(-1, 2, (size,), generator=generator).float().exp2()
    return torch.rand(size, generator=generator) + 0.5


def _strides(
    stored: Stored, shape: tuple[int, int], batch: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(shape with its leading dimensions, strides, elements from first to last)."""
    rows, columns = shape
    matrix = {
        "row": (columns, 1),
        "column": (1, rows),
        "padded row": (-(-columns // 16) * 16 + 16, 1),
        "padded column": (1, -(-rows // 16) * 16 + 16),
        "sliced": (columns + 5 - columns % 2, 1),
        "stepped": (6 * columns, 3),
        "expanded": (0, 1),
        "overlapping": (3, 1),
    }[stored.view]
    one = max(matrix[0] * rows, matrix[1] * columns, 1)
    if stored.view == "overlapping":
        one = 3 * rows + columns
    if stored.batch == "shared":
        return shape, matrix, one
    sizes = (
        batch if stored.batch != "first" else tuple(n if not i else 1 for i, n in enumerate(batch))
    )
    order = range(len(sizes)) if stored.batch == "turned" else reversed(range(len(sizes)))
    steps, reach = [0] * len(sizes), one
    for index in order:
        steps[index] = reach
        reach *= sizes[index]
    return (*sizes, *shape), (*steps, *matrix), reach


def _plant(special: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> None:
    if not special:
        return
    what, _, where = special.partition(" in ")
    target = {"A": a, "B": b, "C": c}[where]
    if target is not None and target.numel():  # A and B have no element where K is 0
        # The last row and column: where tiles hang over the edge.
        target[..., -1, -1:] = torch.tensor([float(what)], device=target.device).to(target.dtype)


def check(row: dispatch.Kernel, call: DrawnCall, device: torch.device | str) -> Outcome:
    """Make the operands, run the kernel by name, judge what it wrote."""
    return judge(row, call, make(call, device))


REPEATS = 3
"""Calls of one kind in a row: the first makes a launch, the others run it."""


def check_repeated(row: dispatch.Kernel, call: DrawnCall, device: torch.device | str) -> Outcome:
    """As ``check``, called REPEATS times with new data at new addresses, then with an A that is
    aligned otherwise. The first outcome that is not ok, or the last; a refusal of the misaligned
    call alone is none."""
    kept = []  # what lives on keeps its address from the next
    worst = 0.0
    for turn in range(REPEATS + 1):
        again = replace(call, seed=call.seed + 7919 * turn)
        if turn == REPEATS:
            again = replace(again, a=replace(call.a, offset=call.a.offset + 1))
        kept.append(make(again, device))
        outcome = judge(row, again, kept[-1])
        if outcome.status == "refused" and turn == REPEATS:
            break
        if outcome.status != "ok":
            if not turn:
                return outcome
            return replace(outcome, reason=f"call {turn + 1} of its kind: {outcome.reason}")
        worst = max(worst, outcome.error_ratio)
    return Outcome("ok", worst)


def judge(row: dispatch.Kernel, call: DrawnCall, made: Made) -> Outcome:
    """Run the kernel on these operands and judge what it wrote.

    The host judges: a GPU that many processes share is asked for the product alone.
    """
    before = _on_host(made)
    try:
        run(row, call, made)
    except UnsupportedError as error:
        return Outcome("refused", reason=str(error))
    except (TcgemmError, RuntimeError) as error:
        return Outcome("failed", reason=f"{type(error).__name__}: {error}".splitlines()[0])
    after = _on_host(made)
    if trouble := _changed(before, after):
        return Outcome("wrong", reason=trouble)
    result = after.out
    fusion = Fusion(
        alpha=call.alpha,
        beta=call.beta,
        c=before.c if call.beta else None,
        bias=before.bias,
        epilogue=call.epilogue,
        scale_a=_spread(before.scale_a, call.M),
        scale_b=_spread(before.scale_b, call.N),
        compute=call.compute,
    )
    a, b = (t.expand(*call.batch, *t.shape[-2:]) for t in (before.a, before.b))
    if call.alpha == 0:
        a, b = a[..., :0], b[..., :0, :]
    c_in = None if fusion.c is None else fusion.c.expand(result.shape)
    ratio, errors = 0.0, 0
    adds = fusion.c is not None or fusion.bias is not None
    rounds_product = row.rounds_product and adds and result.is_floating_point()
    to_the_bit = not rounds_product and (call.exact or not result.is_floating_point())
    for index in itertools.product(*(range(size) for size in call.batch)):
        part = replace(fusion, c=None if c_in is None else c_in[index])
        if to_the_bit:
            errors += int((result[index] != exact(a[index], b[index], part, result.dtype)).sum())
        else:
            each = accuracy.error_ratio(a[index], b[index], result[index], part, rounds_product)
            ratio = max(ratio, each)
    if errors:
        reason = f"{errors} of {result.numel()} elements differ from the exact result"
        return Outcome("wrong", exact_errors=errors, reason=reason)
    if not ratio <= 1:
        reason = (
            "elements are not finite where they should be, or never written"
            if math.isinf(ratio)
            else f"the worst error is {ratio:.3g} times its bound"
        )
        return Outcome("wrong", ratio, reason=reason)
    return Outcome("ok", ratio)


def run(row: dispatch.Kernel, call: DrawnCall, made: Made) -> torch.Tensor:
    """The call through ``gemm``, by this kernel."""
    return gemm(
        made.a,
        made.b,
        made.c,
        alpha=call.alpha,
        beta=call.beta,
        bias=made.bias,
        epilogue=call.epilogue or None,
        out=made.out,
        compute=call.compute,
        scale_a=made.scale_a,
        scale_b=made.scale_b,
        mma_shape=call.mma_shape or None,
        backend=row.backend,
        kernel=row.name,
    )


def _spread(scale: torch.Tensor | None, size: int) -> torch.Tensor | None:
    return None if scale is None else scale.expand(size)


def exact(a: torch.Tensor, b: torch.Tensor, fusion: Fusion, dtype_out: torch.dtype) -> torch.Tensor:
    """The result where all sums are exact in float64: rounded once, int32 wrapped."""
    value = torch.mm(a.double(), b.double()) * fusion.alpha
    if fusion.scale_a is not None and fusion.scale_b is not None:
        value = value * fusion.scale_a.double()[:, None] * fusion.scale_b.double()
    if fusion.c is not None:
        value = value + fusion.beta * fusion.c.double()
    if fusion.bias is not None:
        value = value + fusion.bias.double()
    if dtype_out == torch.int32:
        value = value.to(torch.int64).to(torch.int32)
    return FUNCTIONS[fusion.epilogue](value).to(dtype_out)


def _on_host(made: Made) -> Made:
    """A copy of the tensors in host memory, each operand still a view of its buffer."""
    buffers = {name: buffer.to("cpu", copy=True) for name, buffer in made.buffers.items()}

    def view(name: str, of: torch.Tensor) -> torch.Tensor:
        return buffers[name].as_strided(of.shape, of.stride(), of.storage_offset())

    out = view("out", made.out)
    c = None
    if made.c is not None:
        c = view("C", made.c) if "C" in buffers else out
    bias, scale_a, scale_b = (
        None if t is None else t.cpu() for t in (made.bias, made.scale_a, made.scale_b)
    )
    return Made(view("A", made.a), view("B", made.b), out, c, bias, scale_a, scale_b, buffers)


def _changed(before: Made, after: Made) -> str:
    """What a kernel changed that was not its result; empty where nothing."""
    out = after.out
    for name, buffer in after.buffers.items():
        now, then = (
            t.view(torch.uint8).view(t.numel(), -1) for t in (buffer, before.buffers[name])
        )
        different = (now != then).any(1)
        if name == "out":
            different[_elements(out.shape, out.stride(), int(out.storage_offset()))] = False
        if bool(different.any()):
            count = int(different.sum())
            what = "elements beside out" if name == "out" else f"elements of {name}'s buffer"
            return f"{count} {what} were changed"
    return ""


def save(path: Path, row: dispatch.Kernel, call: DrawnCall) -> None:
    """The operands of a call and the kernel's name, for ``replay``.

    Raises ResultsError where the file cannot be written.
    """
    made = make(call)
    tensors = {name: getattr(made, name) for name in Made.__slots__}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            torch.save({"kernel": row.full_name, "call": asdict(call), **tensors}, file)
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be written ({error.strerror}): choose another folder with --out"
        ) from None


def replay(path: Path, device: torch.device | str) -> tuple[dispatch.Kernel, DrawnCall, Outcome]:
    """Run and judge again what ``save`` wrote: on the operands that it holds, then, where that is
    right, repeated as ``check_repeated`` does.

    Raises OperandError where the file is none that ``save`` wrote.
    """
    try:
        data = torch.load(path, map_location=device, weights_only=True)
        name, call = data.pop("kernel"), from_dict(data.pop("call"))
        made = Made(**data)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, *_OF_ANOTHER_KIND) as error:
        raise OperandError(
            f"{path} is no call that this version of 'tcgemm verify' saved: {first_line(error)}"
        ) from None
    row = dispatch.named(name)
    outcome = judge(row, call, made)
    return row, call, outcome if outcome.status != "ok" else check_repeated(row, call, device)


_OF_ANOTHER_KIND = (TypeError, KeyError, AttributeError, ValueError)
"""What reading a file raises that holds other things than ``save`` puts there."""
