"""``gemm`` and ``matmul``: from a call's tensors to one launch of one kernel."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from . import dispatch
from .epilogue import finished, wide_dtype
from .errors import OperandError, ToolchainError
from .operands import (
    as_one_batch,
    batch_shape,
    check_bias,
    check_c,
    check_compute,
    check_disjoint,
    check_factors,
    check_operands,
    check_output,
    check_scale,
    dtype_name,
    one_batch_dimension,
    output_dtype,
    overlap,
    span,
)
from .problem import COMPUTES, Fusion, Problem

_Launch = Callable[..., None]
"""(a, b, c), and fusion where there is one."""

_Chosen = tuple[Problem, dispatch.Kernel, Callable[..., None], dict[str, Any]]
"""The problem, its kernel's row and callable, and the arguments that follow A, B and C."""

_Repeated = Callable[
    [torch.Tensor, torch.Tensor, "torch.Tensor | None", int, int, int], torch.Tensor
]
"""(a, b, out, and the addresses of the three) -> C."""


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    backend: str | None = None,
    kernel: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """C = A @ B: ``gemm`` without what comes after the product.

    Args:
        a: A, [..., M, K] or [K]; any strides and storage offset.
        b: B, [..., K, N] or [K], the dtype and device of A. Leading dimensions broadcast.
        backend: "triton", "cuda" or "cublas"; by default the environment variable
            TCGEMM_BACKEND, or "triton".
        kernel: a rung by name (see ``tcgemm.kernels()``); by default the highest rung of the
            backend that accepts the problem, less those measured slower there than a lower one.
        out: C, written in place: any strides without overlap, disjoint from A and B.
        out_dtype: dtype of C; by default that of A, int32 for 8-bit integers and bfloat16 for
            8-bit floats.

    Returns:
        C, which is ``out`` where that is given; row-major otherwise.

    Raises:
        As ``gemm``.
    """
    # A repeated call skips the checks that its first one passed: all that they, the choice and the
    # plan depend on is in the key, but for addresses, of which the key has the alignment.
    try:
        a_start, b_start = a.data_ptr(), b.data_ptr()
        c_start = 0 if out is None else out.data_ptr()
        of_c = (
            ()
            if out is None
            else (
                out.shape,
                out.stride(),
                out.dtype,
                out.device,
                c_start & 255,
                out.requires_grad,
                out.is_neg(),
            )
        )
        key = (
            a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
            a_start & 255, b_start & 255, a.is_neg(), b.is_neg(), of_c, out_dtype,
            backend or dispatch.default_backend(), kernel,
            torch._C._get_deterministic_algorithms(),
        )  # fmt: skip
        differentiates = (a.requires_grad or b.requires_grad) and torch.is_grad_enabled()
        repeated = None if differentiates else _repeated.get(key)
    except (AttributeError, RuntimeError, TypeError):  # no tensors: gemm says what is wrong
        return gemm(a, b, out=out, out_dtype=out_dtype, backend=backend, kernel=kernel)
    if repeated is not None:
        return repeated(a, b, out, a_start, b_start, c_start)
    c = gemm(a, b, out=out, out_dtype=out_dtype, backend=backend, kernel=kernel)
    if a.dim() == 2 and b.dim() == 2 and c.numel() and a.shape[1]:
        _remember(_repeated, key, _repeat(a, b, c, backend or dispatch.default_backend(), kernel))
    return c


def gemm(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    bias: torch.Tensor | None = None,
    epilogue: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    compute: str | None = None,
    scale_a: float | torch.Tensor | None = None,
    scale_b: float | torch.Tensor | None = None,
    mma_shape: str | None = None,
    backend: str | None = None,
    kernel: str | None = None,
) -> torch.Tensor:
    """epilogue(alpha * A @ B + beta * C + bias), in one kernel.

    Args:
        a: A, [..., M, K] or [K]: float16, bfloat16, float32, float64, int8, uint8, float8_e4m3fn
            or float8_e5m2; any strides and storage offset.
        b: B, [..., K, N] or [K], the dtype and device of A. Leading dimensions broadcast.
        c: C, which ``beta`` multiplies: broadcasts to the result, has its dtype; never read where
            beta is 0. It may be ``out`` itself.
        alpha, beta: factors; whole numbers for integer products.
        bias: [N], added to each row; the dtype of the result.
        epilogue: "relu", "gelu" (with erf), "gelu_tanh" or "silu", applied last, in float32.
        out: the result, written in place: any strides without overlap, disjoint from A, B, bias
            and the scales.
        out_dtype: dtype of the result; by default that of A, int32 for 8-bit integers and bfloat16
            for 8-bit floats.
        compute: how the products are summed, "float32" by default. For float16 operands also
            "float16"; for float32 "tf32x3" (the default: float32's accuracy on tensor cores),
            "tf32" (operands rounded to 11 bits) or "ieee" (no tensor core); for 8-bit floats
            also "fast" (the tensor core's own accumulator).
        scale_a, scale_b: factors of 8-bit floats: a number, or a float32 tensor of one element or
            of one for each row of A, column of B.
        mma_shape: the WMMA shape, "16x16x16", "32x8x16", ..., for a kernel that has several.
        backend, kernel: as for ``matmul``.

    Returns:
        The result, [..., M, N] without the dimension that a vector lacks; ``out`` where given.

    Raises:
        OperandError: shapes that do not fit, operands on two devices, an ``out`` that overlaps,
            factors or names that do not exist.
        OperandTypeError: dtypes that differ, a dtype that no kernel takes, not a tensor.
        UnsupportedError: the kernel or backend refuses this problem; the message says why.
        UnknownNameError: no backend or kernel of that name.
        ToolchainError: the kernel cannot be compiled or run here.

    The work is ordered on the current stream of A's device. alpha = 0 or K = 0 leaves A and B
    unread. Batches whose dimensions step as one are one launch; others one launch each for the
    outer dimensions.
    """
    backend = backend or dispatch.default_backend()
    tensors: Any = (a, b, c, bias, scale_a, scale_b, out)
    try:
        key: Any = (
            *map(_all_but_address, (*tensors, alpha, beta)), epilogue, compute, mma_shape,
            out_dtype, backend, kernel, torch._C._get_deterministic_algorithms(),
            torch.is_grad_enabled(),
        )  # fmt: skip
        again = _finished.get(key)
    except (AttributeError, RuntimeError, TypeError):  # no tensors: the checks say what is wrong
        key = again = None
    if again is not None and (done := again(*tensors)) is not None:
        return done
    dispatch.ladder(backend)
    if kernel is not None:
        dispatch.find(backend, kernel)
    check_operands(a, b)
    dtype = dtype_name(a.dtype)
    result_dtype = output_dtype(a, out, out_dtype)
    check_factors(dtype, alpha, beta, epilogue)
    compute = check_compute(dtype, compute)
    vector_a, vector_b = a.dim() == 1, b.dim() == 1
    a = a[None, :] if vector_a else a
    b = b[:, None] if vector_b else b
    batch = batch_shape(a, b)
    M, K, N = a.shape[-2], a.shape[-1], b.shape[-1]
    full = (*batch, M, N)
    shape = (*batch, *(() if vector_a else (M,)), *(() if vector_b else (N,)))
    factor_a, scale_a = check_scale("scale_a", scale_a, M, "rows of A", a)
    factor_b, scale_b = check_scale("scale_b", scale_b, N, "columns of B", b)
    alpha = alpha * factor_a * factor_b
    if bias is not None:
        check_bias(bias, N, result_dtype, a)
    if c is not None:
        check_c(c, shape, result_dtype, a)
    elif beta != 0:
        raise OperandError(
            f"beta is {beta} and there is no C to multiply: pass c=, or c=out to add in place"
        )
    c = c if beta != 0 else None
    if out is None:
        result = a.new_empty(shape, dtype=result_dtype)
    else:
        check_output(out, shape, a)
        check_disjoint(out, A=a, B=b, bias=bias, scale_a=scale_a, scale_b=scale_b)
        result = out
    if c is not None:
        c = c.expand(shape)
        same = c.data_ptr() == result.data_ptr() and c.stride() == result.stride()
        if out is not None and not same and overlap(out, c):
            raise OperandError(
                "out overlaps C in memory and is not C: pass c=out with the same shape and "
                "strides, another out, or clone C"
            )
    if result.numel() == 0:
        return result
    fusion = Fusion(
        alpha=float(alpha),
        beta=float(beta),
        c=c if c is None else _with_vectors(c, vector_a, vector_b),
        bias=bias,
        epilogue=epilogue or "",
        scale_a=scale_a,
        scale_b=scale_b,
        compute=compute,
        mma_shape=mma_shape or "",
    )
    view = _with_vectors(result, vector_a, vector_b)
    if K == 0 or fusion.alpha == 0:
        _without_product(view, fusion)
        return result
    a, b = a.expand(*batch, M, K), b.expand(*batch, K, N)
    for part in _parts(full, a, b, view, fusion):
        chosen = _launch(backend, kernel, *part)
    matrices = result.dim() == 2 and not batch and (c is None or tensors[2].shape == shape)
    if key is not None and matrices:
        _remember(_finished, key, _finish_again(a, b, result, fusion, chosen))
    return result


def _with_vectors(t: torch.Tensor, vector_a: bool, vector_b: bool) -> torch.Tensor:
    """The result with the dimensions that vectors lack: [..., M, N]."""
    t = t.unsqueeze(-1) if vector_b else t
    return t.unsqueeze(-2) if vector_a else t


def _parts(
    shape: tuple[int, ...], a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, fusion: Fusion
) -> Any:
    """(a, b, c, fusion) for each launch: 2-D, or [batch, rows, columns]; as few as there can be.

    A batch that shares B is one product with more rows where A and C are stored as one matrix.
    """
    batch = shape[:-2]
    if not batch:
        yield a, b, c, fusion
        return
    if math.prod(batch) == 1:
        yield (
            _flat(a),
            _flat(b),
            _flat(c),
            replace(fusion, c=None if fusion.c is None else _flat(fusion.c)),
        )
        return
    shared_b = not any(b.stride()[: len(batch)])
    if shared_b and (fusion.scale_a is None or fusion.scale_a.numel() == 1):
        tall = [
            _as_rows((*batch, shape[-2]), t)
            for t in (a, c, *([] if fusion.c is None else [fusion.c]))
        ]
        if all(t is not None for t in tall):
            yield tall[0], b[(0,) * len(batch)], tall[1], replace(fusion, c=(*tall, None)[2])
            return
    for outer in range(len(batch)):
        inner = batch[outer:]
        if one_batch_dimension(
            inner, *(t[(0,) * outer] for t in (a, b, c, fusion.c) if t is not None)
        ):
            break
    else:
        outer, inner = len(batch), ()
    for index in itertools.product(*(range(size) for size in batch[:outer])):
        a_part, b_part, c_part, c_in = (
            None
            if t is None
            else as_one_batch(inner, t[index])
            if math.prod(inner) > 1
            else _flat(t[index])
            for t in (a, b, c, fusion.c)
        )
        yield a_part, b_part, c_part, replace(fusion, c=c_in)


def _flat(t: torch.Tensor) -> torch.Tensor:
    """The one matrix of a tensor whose leading dimensions are all 1."""
    return t[(0,) * (t.dim() - 2)]


def _as_rows(rows: tuple[int, ...], t: torch.Tensor) -> torch.Tensor | None:
    """The view [product of rows, columns], where the leading dimensions and rows step as one."""
    columns = t[..., None, :]
    if not one_batch_dimension(rows, columns):
        return None
    return as_one_batch(rows, columns)[:, 0, :]


def _launch(
    backend: str,
    kernel: str | None,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Fusion,
) -> _Chosen:
    problem, row, run, config = chosen = _choice(backend, kernel, a, b, c, fusion)
    _guarded(partial(run, **config), row, problem)(a, b, c)
    return chosen


def _choice(
    backend: str,
    kernel: str | None,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Fusion,
) -> _Chosen:
    problem = dispatch.problem_of(a, b, c, fusion)
    if backend == "triton" and kernel is None and os.environ.get("TCGEMM_TUNE") == "1":
        from .tune import once

        once(problem)
    row = dispatch.choose(problem, backend, kernel)
    config: dict[str, Any] = dict(row.plan(problem))
    if not problem.plain:
        config["fusion"] = fusion
    return problem, row, dispatch.load(backend, row.name), config


def _guarded(launch: _Launch, row: dispatch.Kernel, problem: Problem) -> _Launch:
    """The launch with A's device as the current one, and a kernel's RuntimeError explained."""

    def guarded(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, **more: Any) -> None:
        device = a.get_device()
        try:
            if device < 0 or device == torch._C._cuda_getDevice():
                launch(a, b, c, **more)
            else:
                with torch.cuda.device(device):
                    launch(a, b, c, **more)
        except RuntimeError as error:
            memory = isinstance(error, torch.OutOfMemoryError)
            if device >= 0 and not memory and torch.cuda.is_current_stream_capturing():
                raise ToolchainError(
                    f"{row.full_name} failed on {problem} while a graph is captured: call it once "
                    f"with such operands before the capture, which loads and tunes it ({error})"
                ) from error
            if type(error) is not RuntimeError:  # out of memory, and the like, keep their type
                raise
            raise ToolchainError(f"{row.full_name} failed on {problem}: {error}") from error

    return guarded


def _without_product(c: torch.Tensor, fusion: Fusion) -> None:
    """C = epilogue(beta C + bias), where alpha or K is 0: A and B are not read."""
    zeros = torch.zeros(c.shape, dtype=wide_dtype(c.dtype), device=c.device)
    c.copy_(finished(zeros, replace(fusion, alpha=1.0, scale_a=None, scale_b=None)))


_repeated: dict[tuple[Any, ...], _Repeated] = {}
"""By a call's key in ``matmul``: what does a call like it."""

_finished: dict[tuple[Any, ...], Callable[..., torch.Tensor | None]] = {}
"""By a call's key in ``gemm``: what does a call like it, or None where that has to be checked."""

_MOST_REPEATED = 4096


def forget() -> None:
    """Choose and plan anew from now on."""
    _repeated.clear()
    _finished.clear()


def _remember(calls: dict[tuple[Any, ...], Any], key: tuple[Any, ...], call: Any) -> None:
    if len(calls) >= _MOST_REPEATED:
        calls.clear()
    calls[key] = call


def _repeat(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, backend: str, kernel: str | None
) -> _Repeated:
    """What does products of matrices like these, the checks, the choice and the plan behind it."""
    fusion = Fusion(compute=COMPUTES[dtype_name(a.dtype)][0])
    problem, row, run, config = _choice(backend, kernel, a, b, c, fusion)
    prepare = getattr(run, "prepare", None)
    launch = _guarded(
        prepare(a, b, c, **config) if prepare else partial(run, **config), row, problem
    )
    a_bytes, b_bytes, c_bytes = (end - start for start, end in map(span, (a, b, c)))
    shape, dtype = tuple(c.shape), c.dtype
    misaligned = problem.c_alignment - 1

    def repeat(
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None,
        a_start: int,
        b_start: int,
        c_start: int,
    ) -> torch.Tensor:
        if out is None:
            out = a.new_empty(shape, dtype=dtype)
            if out.data_ptr() & misaligned:  # the plan was made for a better aligned C
                return gemm(a, b, out=out, backend=backend, kernel=kernel)
        elif -a_bytes < a_start - c_start < c_bytes or -b_bytes < b_start - c_start < c_bytes:
            check_disjoint(out, A=a, B=b)
        launch(a, b, out)
        return out

    return repeat


def _all_but_address(given: Any) -> tuple[Any, ...]:
    """What checks, choice and plan depend on: of a tensor all but its address, of which the
    alignment; of a number or None itself."""
    if given is None or isinstance(given, (int, float)):
        return type(given), given
    return (
        given.shape, given.stride(), given.dtype, given.device, given.data_ptr() & 255,
        given.is_neg(), given.requires_grad,
    )  # fmt: skip


def _finish_again(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    fusion: Fusion,
    chosen: _Chosen,
) -> Callable[..., torch.Tensor | None]:
    """What does calls of ``gemm`` like this one, of matrices, the checks and choice behind it."""
    problem, row, run, config = chosen
    config.pop("fusion", None)
    launch = _guarded(partial(run, **config), row, problem)
    operands: Any = (a, b, fusion.c, fusion.bias, fusion.scale_a, fusion.scale_b)
    sizes = [0 if t is None else span(t)[1] - span(t)[0] for t in operands]
    c_bytes = span(c)[1] - span(c)[0]
    reads_c = fusion.c is not None
    in_place = reads_c and operands[2].stride() == c.stride()
    shape, dtype, misaligned = tuple(c.shape), c.dtype, problem.c_alignment - 1
    of_scales = [None if t is None else t.shape for t in (fusion.scale_a, fusion.scale_b)]
    asked = replace(fusion, c=None, bias=None, scale_a=None, scale_b=None)  # keeps no tensor alive

    def again(*tensors: Any) -> torch.Tensor | None:
        *read, out = tensors
        a, b, c_in, bias, scale_a, scale_b = read
        if out is None:
            out = a.new_empty(shape, dtype=dtype)
            if out.data_ptr() & misaligned:  # the plan was made for a better aligned C
                return None
        else:
            start = out.data_ptr()
            for t, size in zip(read, sizes, strict=True):
                distance = t.data_ptr() - start if size else c_bytes
                same = t is c_in and in_place and not distance
                if -size < distance < c_bytes and not same:
                    return None
        if problem.plain:
            launch(a, b, out)
            return out
        scale_a, scale_b = (
            None if size is None else scale.reshape(size).contiguous()
            for scale, size in zip((scale_a, scale_b), of_scales, strict=True)
        )
        c_in = c_in if reads_c else None
        fused = replace(asked, c=c_in, bias=bias, scale_a=scale_a, scale_b=scale_b)
        launch(a, b, out, fusion=fused)
        return out

    return again
