"""What happens to an accumulator before it is stored: scales, alpha, beta, bias, activation.

    C = activation(alpha * scale_a * scale_b * acc + beta * C_in + bias)

in float32; in float64 for float64, and in int32, which wraps, for integers. A kernel calls
``finish`` on a part of its tile, then narrows. What is absent is None, and compiles to nothing.
"""

# Triton compiles what follows a return: the else is no ornament.
# ruff: noqa: RET505

from __future__ import annotations

from ..host.runtime import tl, triton
from .dot import widen


@triton.jit
def read(c_in, row, col, M, N, stride_im, stride_in):
    """C_in at row[:, None] and col[None, :], zeros outside of C[M, N].

    C_in may be C itself: every element is read by the program that writes it, and before.
    """
    inside = (row < M)[:, None] & (col < N)[None, :]
    places = c_in + row[:, None] * stride_im + col[None, :] * stride_in
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def prefetch_l2(x, row, n, M, N, stride_m, stride_n, BLOCK_N: tl.constexpr):
    """Prefetch BLOCK_N columns of x[M, N] from column n on into L2, one request for 128 bytes."""
    EACH: tl.constexpr = 1024 // x.dtype.element_ty.primitive_bitwidth
    LINES: tl.constexpr = BLOCK_N // EACH if BLOCK_N > EACH else 1
    col = n + (tl.arange(0, LINES) * EACH).to(tl.int64)
    row, col = tl.minimum(row, M - 1), tl.minimum(col, N - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [x + row[:, None] * stride_m + col[None, :] * stride_n],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def finish(
    acc,
    row,
    col,
    M,
    N,
    before,
    bias,
    scale_a,
    scale_b,
    alpha,
    beta,
    stride_bias,
    ROW_SCALES_A: tl.constexpr,
    ROW_SCALES_B: tl.constexpr,
    BIAS_ROWS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EMULATED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """acc at the 64-bit indices row[:, None] and col[None, :] of C[M, N], before narrowing.

    Args:
        acc: float16, float32, float64 or int32.
        before: these elements of C_in (see ``read``), or None.
        bias: pointer to one element a column, or a row with BIAS_ROWS (where the kernel computes
            the transpose of C), or None.
        scale_a, scale_b: pointer to one float32, or to one a row of A or column of B with
            ROW_SCALES; or None.
    """
    x = widen(acc, False)
    factor = tl.full((), alpha, x.dtype)
    if scale_a is not None and not ROW_SCALES_A:
        factor *= tl.load(scale_a)
    if scale_b is not None and not ROW_SCALES_B:
        factor *= tl.load(scale_b)
    x *= factor
    if scale_a is not None and ROW_SCALES_A:
        x *= tl.load(scale_a + row, mask=row < M, other=0.0)[:, None]
    if scale_b is not None and ROW_SCALES_B:
        x *= tl.load(scale_b + col, mask=col < N, other=0.0)[None, :]
    if before is not None:
        x += tl.full((), beta, x.dtype) * widen(before, EMULATED)
    if bias is not None:
        if BIAS_ROWS:
            x += widen(tl.load(bias + row * stride_bias, mask=row < M, other=0), EMULATED)[:, None]
        else:
            x += widen(tl.load(bias + col * stride_bias, mask=col < N, other=0), EMULATED)[None, :]
    return activate(x, ACTIVATION, INTERPRETED)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, INTERPRETED: tl.constexpr):
    """relu, gelu, gelu_tanh or silu of x, or x; NaN stays NaN."""
    if ACTIVATION == "relu":
        # A maximum would drop NaN.
        return tl.where(x < 0, 0, x)
    elif ACTIVATION == "gelu":
        return gelu(x, INTERPRETED)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(z)) / 2 is the logistic function of 2 z.
        z = x * (1.5957691216057308 + 0.07135481627260025 * x * x)
        return x * logistic(z, INTERPRETED)
    elif ACTIVATION == "silu":
        return x * logistic(x, INTERPRETED)
    else:
        tl.static_assert(ACTIVATION == "", "activate has no branch for this activation")
        return x


@triton.jit
def through(grad, x, ACTIVATION: tl.constexpr, INTERPRETED: tl.constexpr):
    """grad times the derivative of relu, gelu, gelu_tanh or silu at x, in float32."""
    if ACTIVATION == "relu":
        # No product, which would make NaN of Inf. The derivative at 0 is 0.
        return tl.where(x <= 0, 0.0, grad)
    elif ACTIVATION == "gelu":
        # gelu is x Phi(x), and Phi's derivative the density of the normal distribution.
        density = 0.3989422804014327 * power_of_two(-0.7213475204444817 * x * x, INTERPRETED)
        return grad * (normal_distribution(x, INTERPRETED) + x * density)
    elif ACTIVATION == "gelu_tanh":
        # gelu_tanh is x times the logistic function of z, whose derivative is s (1 - s).
        z = x * (1.5957691216057308 + 0.07135481627260025 * x * x)
        s = logistic(z, INTERPRETED)
        slope = 1.5957691216057308 + 0.21406444881780074 * x * x
        return grad * (s + x * s * (1.0 - s) * slope)
    else:
        tl.static_assert(ACTIVATION == "silu", "through has no branch for this activation")
        s = logistic(x, INTERPRETED)
        return grad * s * (1.0 + x * (1.0 - s))


@triton.jit
def logistic(x, INTERPRETED: tl.constexpr):
    """1 / (1 + exp(-x)); in float32 to about 2^-22."""
    if x.dtype == tl.float64:
        return 1.0 / (1.0 + tl.exp(-x))
    elif INTERPRETED:
        # Bounded, lest numpy warn of the overflow that is meant.
        y = -1.4426950408889634 * x
        result = 1.0 / (1.0 + power_of_two(tl.minimum(y, 127.0), True))
        return tl.where(y < 127.0, result, tl.where(y == y, 0.0, y))
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;",
            "=f,f",
            [1.0 + power_of_two(-1.4426950408889634 * x, False)],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def power_of_two(x, INTERPRETED: tl.constexpr):
    """2^x in float32, 0 below 2^-126: one instruction, where the careful form takes four."""
    if INTERPRETED:
        return tl.math.exp2(x)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def gelu(x, INTERPRETED: tl.constexpr):
    """x Phi(x), Phi the normal distribution function; as torch, NaN at minus infinity."""
    if x.dtype == tl.float64:
        return 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    else:
        return x * normal_distribution(x, INTERPRETED)


@triton.jit
def normal_distribution(x, INTERPRETED: tl.constexpr):
    """Phi(x) in float32.

    Phi(-t) = 2^Q(t) for t >= 0, with Q of degree 8 fitted to log2(erfc(t / sqrt(2)) / 2) so that
    Phi(-t) max(1, t) is within 8e-8 of the truth. That is a third of the instructions of erf, which
    has two branches.
    """
    # Q falls without end: at 14 it is -217, and 2^-217 is 0 in float32, as is 2^-Inf.
    t = tl.abs(x)
    if INTERPRETED:
        # Bounded, lest numpy warn of an overflow that is meant.
        t = tl.minimum(t, 14.0)
    q = -7.003419e-07 * t + 1.48002764e-05
    q = q * t - 7.51348416e-05
    q = q * t - 0.000388167886
    q = q * t + 0.00736413477
    q = q * t - 0.0526806079
    q = q * t - 0.459157139
    q = q * t - 1.1511097
    tail = power_of_two(q * t - 1.0, INTERPRETED)
    return tl.where(x > 0, 1.0 - tail, tail)
