"""The gradient of a weight, added to its ``.grad`` by the product that makes it."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import OperandError
from ..launch_cache import run, run_kept

will_run = getattr(torch._C, "_will_engine_execute_node", None)
"""Whether the backward pass that runs now goes on to a node; RuntimeError for a leaf that
torch.autograd.grad was asked for."""


def added(node: Any, a: Any, b: Any, compute: Any, backend: Any) -> bool:
    """Whether A B was added in place to the gradient of the leaf that ``node`` accumulates.

    It is where torch would add it next: there is a gradient of the same kind, in memory of its own,
    ``backward`` was called and not ``torch.autograd.grad``, and no hook waits to see what is added.

    Args:
        node: where the gradient by the weight goes: AccumulateGrad, if the weight is a leaf.
        a, b: [N, M] and [M, K], whose product is the gradient.
        compute, backend: of the product.
    """
    leaf = getattr(node, "variable", None)
    if leaf is None or will_run is None or leaf._backward_hooks:
        return False
    if getattr(leaf, "_post_accumulate_grad_hooks", None):
        return False
    grad = leaf.grad
    if (
        type(grad) is not torch.Tensor
        or grad.layout is not torch.strided
        or grad.dtype is not a.dtype
        or grad.device != a.device
        or grad.requires_grad
    ):
        return False
    try:
        if not will_run(node):
            return False
    except RuntimeError:  # torch.autograd.grad: the caller wants this gradient, and .grad as it is
        return False
    arguments = (
        a, b, grad, 1.0, 1.0, None, None, grad, None, compute, None, None, None, backend, None,
    )  # fmt: skip
    try:
        if run_kept(arguments) is None:
            run(arguments)
    except OperandError:  # its memory is an operand's too, or not to be written: nothing was
        return False
    return True
