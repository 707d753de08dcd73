"""C[M, N] = A[M, K] @ B[K, N]: a kernel of your own. It is right for any size and strides.

tcgemm verify --kernel NAME.py        both checks over edges and drawn calls
tcgemm bench --kernel NAME.py         verified, then timed beside cuBLAS (on a GPU)
"""

import triton
import triton.language as tl

# What it takes: (dtype of A and B, of C), and what M, N and K are multiples of. tcgemm reads these.
PAIRS = (("float16", "float16"),)
MULTIPLE = 1


@triton.jit
def kernel(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Offsets are 64-bit before any multiplication by a stride.
    offs_m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        # Zeros outside of A and B, on both sides: 0 times a stale NaN is NaN.
        in_k = k + offs_k < K
        a_block = tl.load(
            a + offs_m[:, None] * stride_am + (k + offs_k)[None, :] * stride_ak,
            mask=(offs_m < M)[:, None] & in_k[None, :], other=0.0,
        )  # fmt: skip
        b_block = tl.load(
            b + (k + offs_k)[:, None] * stride_bk + offs_n[None, :] * stride_bn,
            mask=in_k[:, None] & (offs_n < N)[None, :], other=0.0,
        )  # fmt: skip
        acc = tl.dot(a_block, b_block, acc)
    inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    at = c + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(at, acc.to(c.dtype.element_ty), mask=inside)


def run(a, b, c):
    """Writes C[M, N] = A[M, K] @ B[K, N] into ``c``; tensors of any strides, on one device."""
    (M, K), N = a.shape, b.shape[1]
    BLOCK_M, BLOCK_N, BLOCK_K = 64, 64, 32
    grid = (triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N))
    kernel[grid](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, BLOCK_K=BLOCK_K, num_warps=4, num_stages=3,
    )  # fmt: skip
