"""Run a kept launch, of a product and a bias, in the forward and the backward pass of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dispatch import default_backend
from ..forks import first_call
from ..launch import Launch
from ..launch_cache import current_device, launch_of


def arguments(
    a: Any, b: Any, bias: Any, epilogue: Any, asked: tuple[Any, ...], out: Any = None
) -> tuple[Any, ...]:
    """Of ``gemm``, in the order of launch_cache.key_of."""
    out_dtype, compute, backend, kernel = asked
    return (
        a, b, None, 1.0, 0.0, bias, epilogue, out, out_dtype, compute, None, None, None, backend,
        kernel,
    )  # fmt: skip


def asked_of(compute: str, backend: str) -> tuple[Any, ...]:
    """out_dtype, compute, backend, kernel."""
    return None, compute or None, backend or default_backend(), None


def start(launch: Launch, a: Any, b: Any, bias: Any, out: Any) -> None:
    """Run a launch of a plain product and a bias, as launch_cache.run_launch does."""
    run = launch.start
    if run is None or (launch.device >= 0 and launch.device != current_device()):
        launch.write(a, b, None, bias, None, None, out)
        return
    try:
        run(a, b, out, None, bias, None, None)
    except RuntimeError as error:
        raise launch.explained(error) from error


def multiply(
    launch: Launch | None, asked: Any, a: Any, b: Any, bias: Any, out: Any, epilogue: Any = None
) -> Launch:
    """out = epilogue(A B + bias), of matrices of which none requires a gradient now, by the launch
    for such.

    Returns it, or another where there was none or its plan was made for a better aligned result.

    Args:
        asked: out_dtype, compute, backend, kernel.
    """
    if launch is None or out.data_ptr() & launch.misaligned:
        with first_call():
            launch = launch_of(arguments(a, b, bias, epilogue, asked, out))
    start(launch, a, b, bias, out)
    return launch


def multiply_at(
    launch: Launch | None,
    asked: Any,
    a: Any,
    b: Any,
    bias: Any,
    out: Any,
    matrices: Callable[[], tuple[Any, ...]],
    epilogue: Any = None,
) -> Launch:
    """``multiply`` of the matrices A, B and C that ``matrices`` gives, where ``a``, ``b`` and
    ``out`` are tensors at their addresses."""
    if launch is not None and launch.by_address and not out.data_ptr() & launch.misaligned:
        start(launch, a, b, bias, out)
        return launch
    a, b, out = matrices()
    return multiply(launch, asked, a, b, bias, out, epilogue)


def run_with_aux(
    launch: Launch,
    aux: str,
    epilogue: str,
    a: Any,
    b: Any,
    bias: Any,
    z: Any,
    out: Any,
    matrices: Callable[[], tuple[Any, ...]] | None = None,
) -> bool:
    """Run a launch's kernel with ``Fusion.aux``; False where it has none, and nothing was run.

    Args:
        matrices: gives A, B, Z and C, where those before are other tensors at their addresses.
    """
    run, known = launch.with_aux.get((aux, epilogue)), (aux, epilogue) in launch.with_aux
    if matrices is not None and not getattr(run, "by_address", False):
        a, b, z, out = matrices()
    if not known or (z.data_ptr() | out.data_ptr()) & launch.misaligned:
        with first_call():
            run = launch.start_with_aux(aux, epilogue, a, b, bias, z, out)
    if run is None:
        return False
    try:
        run(a, b, out, z, bias, None, None)
    except RuntimeError as error:
        raise launch.explained(error) from error
    return True
