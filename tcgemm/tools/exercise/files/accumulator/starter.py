"""Exercise 14: what to sum in, in Triton.

The kernel is right for small sums. Once a sum has reached 2048, adding ones changes nothing: a
float16 has 11 bits, and 2048 + 1 is 2048. Which lines decide what is summed in?
"""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(
    a, b, c, M, N, K, stride_am, stride_bk, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float16)
    for k in range(0, K, BLOCK_K):
        in_k = offs_k < K - k
        a_block = tl.load(
            a + offs_m[:, None] * stride_am + (k + offs_k)[None, :],
            mask=(offs_m < M)[:, None] & in_k[None, :], other=0.0,
        )  # fmt: skip
        b_block = tl.load(
            b + (k + offs_k)[:, None] * stride_bk + offs_n[None, :],
            mask=in_k[:, None] & (offs_n < N)[None, :], other=0.0,
        )  # fmt: skip
        acc += tl.dot(a_block, b_block).to(tl.float16)
    inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(c + offs_m[:, None] * stride_cm + offs_n[None, :], acc.to(tl.float16), mask=inside)


def matmul(a, b):
    """C[M, N] = A[M, K] @ B[K, N] of row-major float16 matrices."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    kernel[grid](
        a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0),
        BLOCK_M=32, BLOCK_N=32, BLOCK_K=32,
    )  # fmt: skip
    return c
