"""Launch a rung's kernel, and on a repeated call replay what Triton passed to the driver before.

``kernel[grid](...)`` binds and specializes every argument anew: 13 us of host time with pointers,
15 us with three tensor descriptors, against 7.4 us for all of torch.mm (H200). A rung is bound once
to a kind of call. The first call goes Triton's way; then Triton's own launcher runs once more with
a recorder in place of its C function, and later calls hand the recorded arguments to the C function
directly, with the stream and the addresses replaced.

What compiled code and recorded arguments rest on is the kind of call, which the caller promises:
shapes, strides and dtypes, the device, the plan, what is fused, and every address modulo 16 bytes,
which is what Triton specializes on. A kernel with tensor descriptors is recorded again for each
set of addresses, since a descriptor holds one.

Where Triton's launcher does not look as recording.py expects nothing is replayed, and each call
takes ``kernel[grid]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .recording import Recorded, Step, is_descriptor, record
from .runtime import INTERPRETED, check, one_at_a_time, triton

ADDRESSES = 512
"""Sets of addresses remembered of one kind of call with tensor descriptors."""


@dataclass(slots=True)
class Asked:
    """What a fusion asks for, with the tensors of one call."""

    alpha: float
    beta: float
    epilogue: str
    compute: str
    mma_shape: str
    c: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None


Second = Callable[..., Step | None]
"""``second(a, b, c, args, plan)``: the launch that follows the one with those arguments."""

Repack = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""``repack(a, b)``: A and B as the kernel can read them, copied where need be."""


class Rung:
    """What a rung's module calls ``run``: ``run(a, b, c, fusion=None, **plan)`` writes C.

    C[M, N] = A[M, K] @ B[K, N], or the same for each of a batch [batch, M, K] where the rung takes
    batches; ``fusion`` says what is asked besides, with the attributes alpha, beta, c, bias,
    epilogue, scale_a, scale_b, compute and mma_shape. It is None for a plain product of float16 or
    bfloat16, summed in float32.

    Raises RuntimeError where kernels cannot read the operands' device.
    """

    def __init__(
        self,
        kernel: Any,
        arguments: Callable[..., Any],
        *,
        second: Second | None = None,
        repack: Callable[[str, Mapping[str, int]], Repack | None] | None = None,
        rounding: Any = None,
    ) -> None:
        """
        Args:
            kernel: the function that Triton compiles.
            arguments: ``arguments(a, b, c, **plan)``, or ``(a, b, c, fusion, **plan)`` where
                something is fused -> (grid, positional arguments, constants and options). A tensor
                among them that is no operand is a workspace of float32: later calls get one of
                their own.
            second: the launch that follows.
            repack: ``repack(compute, plan)``: what is done to A and B first, if anything.
            rounding: the kernel in place of ``kernel`` where float32 operands are rounded to tf32.
        """
        self.kernel, self.arguments, self.second = kernel, arguments, second
        self.repack, self.rounding = repack, rounding

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        fused = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
        self.bind(a, b, c, fusion, **plan)(a, b, c, *fused)

    def bind(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> Bound:
        """The rung for products like this one; see ``Bound``."""
        return Bound(self, fusion, plan)


class Kept(NamedTuple):
    """What was recorded of one call."""

    recorded: list[Recorded]
    pattern: list[int]
    """Which addresses were equal: these must stay so, since recorded ones are known by value."""
    workspace: int
    """Elements of float32 that each call needs anew."""


def _alike(addresses: tuple[int, ...], pattern: list[int]) -> bool:
    """Whether just those addresses are equal that were."""
    if len(addresses) == 3:
        return (addresses[0] == addresses[1]) is (pattern[1] == 0)
    return [*map(addresses.index, addresses)] == pattern


class Bound:
    """A rung bound to a kind of call: ``bound(a, b, c, c_in, bias, scale_a, scale_b)``.

    The caller promises that all calls have tensors of the same shapes, strides, dtypes, device and
    alignment, and the same of them None. No tensor is kept.
    """

    __slots__ = (
        "_asked", "_by_address", "_compiled", "_kept", "_kernel", "_plan", "_repack", "_replays",
        "_rung",
    )  # fmt: skip

    def __init__(self, rung: Rung, fusion: Any, plan: Mapping[str, int]) -> None:
        self._rung, self._plan = rung, plan
        self._asked = None if fusion is None else (
            fusion.alpha, fusion.beta, fusion.epilogue, fusion.compute, fusion.mma_shape,
        )  # fmt: skip
        compute = getattr(fusion, "compute", "")
        rounds = rung.rounding is not None and compute == "tf32"
        self._kernel = rung.rounding if rounds else rung.kernel
        self._repack = None if rung.repack is None else rung.repack(compute, plan)
        self._compiled: list[Any] = []  # kept alive with their binaries
        # Written and read at once, since threads share it.
        self._kept: Kept | None = None
        # Of a kernel with descriptors, which hold addresses: by the set of them.
        self._by_address: dict[tuple[int, ...], Kept] = {}
        self._replays = True  # until Triton's launcher is found to look otherwise

    def __call__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        c_in: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale_a: torch.Tensor | None = None,
        scale_b: torch.Tensor | None = None,
    ) -> None:
        if self._repack is not None:
            a, b = self._repack(a, b)
        addresses: tuple[int, ...] = (a.data_ptr(), b.data_ptr(), c.data_ptr())
        if self._asked is not None:
            fused = [x for x in (c_in, bias, scale_a, scale_b) if x is not None]
            addresses = (*addresses, *[x.data_ptr() for x in fused])
        kept = self._kept or self._by_address.get(addresses)
        if kept is None or _hooked() or not _alike(addresses, kept.pattern):
            self._by_triton(a, b, c, (c_in, bias, scale_a, scale_b), addresses)
            return
        if kept.workspace:
            room = torch.empty(kept.workspace, dtype=torch.float32, device=a.device)
            addresses = (*addresses, room.data_ptr())
        stream = torch._C._cuda_getCurrentRawStream(a.get_device())
        for one in kept.recorded:
            one(stream, addresses)

    def _by_triton(
        self, a: Any, b: Any, c: Any, fused: tuple[Any, ...], addresses: tuple[int, ...]
    ) -> None:
        """Launch as Triton does, and record it."""
        check(a)
        fusion = None if self._asked is None else Asked(*self._asked, *fused)
        steps = self._steps(a, b, c, fusion)
        with one_at_a_time:
            compiled = [step[0][step[1]](*step[2], **step[3]) for step in steps]
        if INTERPRETED:
            return
        self._compiled = compiled
        if self._kept is not None or not self._replays or _hooked():
            return  # other addresses are equal than were, or nothing is replayed
        recorded = _record(compiled, steps, addresses)
        if recorded is None:
            self._replays = False
            return
        workspace = max(
            (
                x.numel()
                for step in steps
                for x in step[2]
                if isinstance(x, torch.Tensor) and x.data_ptr() not in addresses
            ),
            default=0,
        )
        kept = Kept(recorded, [*map(addresses.index, addresses)], workspace)
        if not any(is_descriptor(x) for one in recorded for x in one.values):
            self._kept = kept
            return
        if len(self._by_address) >= ADDRESSES:
            self._by_address.clear()
        self._by_address[addresses] = kept

    def _steps(self, a: Any, b: Any, c: Any, fusion: Any) -> list[Step]:
        rung, plan = self._rung, self._plan
        asked = () if fusion is None else (fusion,)
        grid, args, constants = rung.arguments(a, b, c, *asked, **plan)
        steps: list[Step] = [(self._kernel, grid, args, constants)]
        after = rung.second(a, b, c, args, plan) if rung.second is not None else None
        return [*steps, after] if after is not None else steps


def _record(
    compiled: list[Any], steps: list[Step], addresses: tuple[int, ...]
) -> list[Recorded] | None:
    found = [record(*pair, addresses) for pair in zip(compiled, steps, strict=True)]
    recorded = [one for one in found if one is not None]
    return recorded if len(recorded) == len(found) else None


_runtime = triton.knobs.runtime


def _hooked() -> bool:
    """Whether somebody (a profiler) wants to hear of launches: then all of them go by Triton."""
    enter, leave = _runtime.launch_enter_hook, _runtime.launch_exit_hook
    return bool(
        (enter is not None and getattr(enter, "calls", True))
        or (leave is not None and getattr(leave, "calls", True))
    )
