"""What torch's state is while a call is made: functions in C, some of them torch's private ones.

Each is asked in every call, so that one more function of Python around it would be seen in a small
product's time.
"""

from __future__ import annotations

from typing import Any

import torch

from .errors import UnsupportedError

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
"""Types of tensors that hold their elements themselves, if they have memory."""


def _private(path: str) -> Any:
    found: Any = torch._C
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise UnsupportedError(
            f"torch {torch.__version__} has no torch._C.{path}, which tells tcgemm who else has to "
            "see a product: install a newer tcgemm, or torch 2.11 to 2.13"
        )
    return found


grad_mode = torch.is_grad_enabled
"""Whether operations on tensors that require gradients are recorded."""
traces = torch.compiler.is_dynamo_compiling
"""Whether torch.compile traces this very call."""
deterministic = _private("_get_deterministic_algorithms")
modes = _private("_len_torch_dispatch_stack")
"""How many dispatch modes are active."""
transform = _private("_functorch.peek_interpreter_stack")
"""The innermost transform of torch.func, or None."""
jit_trace = _private("_get_tracing_state")
"""The trace of torch.jit.trace, or None."""
