"""What the promises' tests share: a call by one kernel, which it keeps or refuses with numbers."""

from __future__ import annotations

import tcgemm
from tcgemm import accuracy
from tcgemm.errors import UnsupportedError
from tcgemm.problem import Fusion
from tcgemm.verify.calls import DrawnCall, Stored, limited, pairs_of
from tcgemm.verify.judge import Made, Outcome, check, make

PADDED = {"a": Stored("padded row"), "b": Stored("padded row")}
"""Operands as every kernel takes them."""


def call_of(row, pair, M=33, N=40, K=24, **asked):
    """A call of the pair; with sizes in multiples of 64 where the row takes not every shape."""
    if limited(row):
        M, N, K = (-(-size // 64) * 64 for size in (M, N, K))
    dtype_in, dtype_out, compute = pair
    return DrawnCall(M, N, K, dtype_in=dtype_in, dtype_out=dtype_out, compute=compute, **asked)


def made_for(row, seed=0, device="cpu", size=192):
    """A product of the row's first type pair that every kernel takes, and its tensors."""
    pair = pairs_of(row)[0]
    call = call_of(row, pair, M=min(size, 128), N=size, K=size, seed=seed)
    return call, make(call, device)


def right(call, made, result):
    """Whether the result is the product of the made operands."""
    return accuracy.error_ratio(made.a, made.b, result, Fusion(compute=call.compute)) <= 1


def is_refusal(row, call, sentence):
    """A refusal says what was asked, why not, with numbers, and names another way."""
    assert row.full_name in sentence, sentence
    beyond = [
        *("alpha" for _ in range(call.alpha not in (0, 1))),
        *("beta" for _ in range(call.beta != 0)),
        *("bias" for _ in range(call.bias)),
        *("batch" for _ in range(bool(call.batch))),
        *filter(None, [call.epilogue]),
    ]
    expected = limited(row) or call.mma_shape or any(name not in row.fuses for name in beyond)
    assert expected, f"{row.full_name} takes {row.shapes} and fuses {row.fuses}, yet: {sentence}"
    has_numbers(sentence.partition(": ")[2].partition("; ")[0])


def has_numbers(sentence):
    """A sentence says how large what is."""
    assert any(character.isdigit() for character in sentence), sentence


def keeps(row, call, device):
    """Whether the kernel took the call; it is then right, wrote only its result, and left its
    operands as they were."""
    outcome: Outcome = check(row, call, device)
    if outcome.status == "refused":
        is_refusal(row, call, outcome.reason)
        return False
    assert outcome.status == "ok", f"{row.full_name}: {call}: {outcome.reason}"
    return True


def must_keep(row, call, device):
    """The kernel takes the call, and is right."""
    assert keeps(row, call, device), f"{row.full_name} refuses {call}"


def multiply(row, made: Made, call, **asked):
    """The product of made operands by this kernel, or None where it refuses."""
    try:
        return tcgemm.gemm(
            made.a,
            made.b,
            compute=call.compute,
            out_dtype=made.out.dtype,
            backend=row.backend,
            kernel=row.name,
            **asked,
        )
    except UnsupportedError as error:
        is_refusal(row, call, str(error))
        return None
