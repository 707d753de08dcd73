"""No activation is forgotten in a place where a kernel would compute another one without a word.

Triton and CUDA's templates refuse to compile what they do not know. CUDA's switches, which run on
the GPU, end in relu: only this test sees what they lack.
"""

from __future__ import annotations

import re

import pytest
import torch
from tcgemm.cuda_ref.build import toolchain
from tcgemm.cuda_ref.fusion import ANY_ACTIVATION
from tcgemm.triton_kernels.device.epilogue import activate, through
from tcgemm.triton_kernels.host.runtime import INTERPRETED, tl, triton
from tcgemm.triton_kernels.planning.dtypes import FUSES

from tcgemm.epilogue import ACTIVATIONS
from tcgemm.ops.layer import BACKWARD

DIFFERENTIATED = ["relu", *BACKWARD]
"""The activations whose derivative kernels compute."""


@pytest.mark.parametrize(
    ("file", "function", "wanted"),
    [
        ("csrc/tile/activations.cuh", "activate", ACTIVATIONS),
        ("csrc/tile/activations.cuh", "activate_sums", ACTIVATIONS),
        ("csrc/sm90/epilogue_fused.cuh", "differentiate_chunk", DIFFERENTIATED),
        ("derivative.cu", "launch_activation", DIFFERENTIATED),
    ],
)
def test_a_function_of_cuda_knows_each_activation(file, function, wanted):
    body = re.search(rf"\b{function}\(.*?^}}$", (toolchain.ROOT / file).read_text(), re.M | re.S)
    assert body, f"cuda_ref/{file} has no function {function}"
    # Where relu is not named, it is the default.
    known = {"relu", *re.findall(r"(?:case |Constant<)Activation::(\w+)", body[0])}
    missing = [name for name in wanted if name not in known]
    assert not missing, f"{function} in cuda_ref/{file} has no case for {missing}"


def test_both_languages_know_the_activations_of_the_table():
    numbers = toolchain.activations()
    assert {*numbers} == {"", *ACTIVATIONS}, "tcgemm/epilogue.py and CUDA's enum differ"
    assert max(numbers.values()) < ANY_ACTIVATION, "epilogue_fused.cuh keeps them in three bits"
    lacking = [name for name in ACTIVATIONS if name not in FUSES]
    assert not lacking, f"FUSES in triton_kernels/planning/dtypes.py lacks {lacking}"


@triton.jit
def kernel(x, ACTIVATION: tl.constexpr, DERIVATIVE: tl.constexpr, INTERPRETED: tl.constexpr):
    y = tl.load(x)
    if DERIVATIVE:
        tl.store(x, through(y, y, ACTIVATION, INTERPRETED))
    else:
        tl.store(x, activate(y, ACTIVATION, INTERPRETED))


@pytest.mark.parametrize(
    ("function", "wanted"), [("activate", ACTIVATIONS), ("through", DIFFERENTIATED)]
)
def test_a_function_of_triton_knows_each_activation_and_says_which_it_does_not(
    function, wanted, device
):
    x = torch.ones(1, device=device)
    for name in wanted:
        kernel[1,](x, name, function == "through", INTERPRETED)
    with pytest.raises(Exception, match=f"{function} has no branch for this activation"):
        kernel[1,](x, "swish", function == "through", INTERPRETED)
