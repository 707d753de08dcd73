"""A rung's callable by NVRTC, in the shape of ``cuda_ref.load``'s."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch

from ..build.toolchain import built_by_case, sm_of, source
from ..fusion import case
from . import driver, needs
from .compiler import Compiled, compile_kernel
from .launchers import EVERYTHING, LAUNCHERS, Product

_loaded: dict[tuple[int, bytes], Any] = {}
_lock = Lock()


def load(name: str) -> Callable[..., None]:
    """``run(a, b, c, fusion=None, **plan)`` with ``bind``.

    Raises RuntimeError, with the remedy, where the rung has no launcher in Python.
    """
    if name not in LAUNCHERS:
        raise RuntimeError(needs(f"{name} has no launcher in Python"))

    def run(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> None:
        start = bind(a, b, c, fusion, **plan)
        follows = () if fusion is None else (fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
        with torch.cuda.device(a.device):
            start(a, b, c, *follows)

    def bind(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Any = None, **plan: int
    ) -> Callable[..., None]:
        """The rung for products like this one, compiled and loaded. Its calls start it on the
        current stream of the tensors' device, which has to be the current one."""
        if (fusion is not None or a.dim() != 2) and name not in EVERYTHING:
            raise RuntimeError(
                needs(f"what {name} fuses, and its batches, have no launcher in Python")
            )
        launcher, device = LAUNCHERS[name], a.get_device()
        compiled = compiled_for(
            name, a, b, c, torch.cuda.get_device_capability(device), plan, fusion
        )
        properties = torch.cuda.get_device_properties(device)
        with torch.cuda.device(device):
            function = _function(device, compiled)
            constants = {**plan, **compiled.constants}
            shared = [v for k, v in compiled.constants.items() if k.endswith("SHARED_BYTES")]
            driver.allow_shared(function, max(shared, default=0))

        def start(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *follows: Any) -> None:
            product = Product.of(a, b, c, fusion, *follows)
            launch = launcher.launch(product, constants, properties.multi_processor_count)
            early = not torch.cuda.is_current_stream_capturing()
            driver.start(function, launch, torch.cuda.current_stream(device).cuda_stream, early)

        return start

    run.bind = bind  # type: ignore[attr-defined]
    return run


def compiled_for(
    name: str,
    a: Any,
    b: Any,
    c: Any,
    capability: tuple[int, int],
    plan: Any = None,
    fusion: Any = None,
) -> Compiled:
    """The rung's kernel for products like this one, for a GPU of that compute capability.

    No GPU is needed; raises RuntimeError as ``compile_kernel`` does.
    """
    launcher, product = LAUNCHERS[name], Product.of(a, b, c, fusion)
    defines: tuple[str, ...] = ()
    if macros := built_by_case(source(name)):
        defines = case(a.dtype, fusion, c.dtype, a.dim() == 3, macros, plan or None)
    expression = launcher.expression(product)
    constants = launcher.constants(product)
    return compile_kernel(name, expression, constants, sm_of(capability), defines)


def _function(device: int, compiled: Compiled) -> Any:
    key = (device, compiled.cubin)
    with _lock:
        if key not in _loaded:
            _loaded[key] = driver.load(compiled.cubin, compiled.symbol)
        return _loaded[key]
