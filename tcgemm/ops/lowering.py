"""How Inductor writes a product: a call that fills a buffer of its own, as those of torch.mm.

Left to itself Inductor calls an operator that it does not know through the dispatcher, some ten
times as long as a launch takes, and lets it allocate its result: that is in no memory plan, and the
kernels that read it are made for any alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import operator

_HERE = "tcgemm.ops.compiled"

ALIGNED = 256
"""Elements of two bytes that end where no kernel can tell the address from the start."""


def register() -> None:
    """Give Inductor, which is loaded, the way to write products, those of passes of layers too."""
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, lowerings, register_lowering, view
    from torch._inductor.virtualized import V

    class Product(ir.ExternKernelOut):
        """A call of ``compiled``, which the program imports."""

        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(f"import {_HERE}")
            super().codegen(wrapper)

    through_dispatcher = fallback_handler(operator.gemm, add_to_fallback_set=False)

    def lowered(
        a: Any, b: Any, c: Any, bias: Any, scale_a: Any, scale_b: Any, *, alpha: float = 1.0,
        beta: float = 0.0, epilogue: str = "", out_dtype: Any = None, compute: str = "",
        mma_shape: str = "", backend: str = "", rung: str = "",
    ) -> Any:  # fmt: skip
        sizes, dtype = a.get_size(), a.get_dtype()
        if (
            V.graph.cpp_wrapper  # C++ finds operators alone
            or not (None is c is scale_a is scale_b)
            or len(b.get_size()) != 2
            or dtype.itemsize == 1
        ):
            return through_dispatcher(
                a, b, c, bias, scale_a, scale_b, alpha=alpha, beta=beta, epilogue=epilogue,
                out_dtype=out_dtype, compute=compute, mma_shape=mma_shape, backend=backend,
                rung=rung,
            )  # fmt: skip
        K, N = b.get_size()
        if len(sizes) > 2:
            rows = 1
            for size in sizes[:-1]:
                rows *= size
            a = view(a, [rows, K])
        read = [
            ir.ExternKernel.require_stride1(ir.ExternKernel.realize_input(operand))
            for operand in (a, b, bias)
            if operand is not None
        ]
        name = "product" if bias is None else "with_bias"
        written = Product(
            layout=ir.FixedLayout(a.get_device(), out_dtype or dtype, [a.get_size()[0], N]),
            inputs=read,
            constant_args=(alpha, epilogue, compute, mma_shape, backend, rung),
            python_kernel_name=f"{_HERE}.{name}",
        )
        result = ir.TensorBox.create(written)
        return result if len(sizes) == 2 else view(result, [*sizes[:-1], N])

    of_parts = _of_parts(Product)
    for each, way in ((operator.gemm, lowered), *of_parts.items()):
        lowerings.pop(each, None)
        register_lowering(each, type_promotion_kind=None)(way)


def _of_parts(product: Any) -> dict[Any, Callable[..., Any]]:
    """Of the operators that are parts of a layer's passes, how they are written.

    Args:
        product: the class of a call of ``compiled``.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import as_strided, fallback_handler, select
    from torch._inductor.virtualized import V
    from torch.utils._sympy.functions import FloorDiv

    def written(
        function: str, sizes: list[Any], strides: Any, operands: tuple[Any, ...], *asked: str
    ) -> Any:
        read = [
            ir.ExternKernel.require_stride1(ir.ExternKernel.realize_input(operand))
            for operand in operands
            if operand is not None
        ]
        like = operands[0]
        call = product(
            layout=ir.FixedLayout(like.get_device(), like.get_dtype(), sizes, strides),
            inputs=read, constant_args=asked, python_kernel_name=f"{_HERE}.{function}",
        )  # fmt: skip
        return ir.TensorBox.create(call)

    ops = torch.ops.tcgemm
    gemm_with_z, gemm_through_z = ops.gemm_with_z.default, ops.gemm_through_z.default
    gemm_with_sums = ops.gemm_with_sums.default
    z_by_dispatcher, through_by_dispatcher, sums_by_dispatcher = (
        fallback_handler(each, add_to_fallback_set=False)
        for each in (gemm_with_z, gemm_through_z, gemm_with_sums)
    )

    def aligned(elements: Any) -> Any:
        return FloorDiv(elements + ALIGNED - 1, ALIGNED) * ALIGNED

    def with_z(
        a: Any, b: Any, bias: Any, *, epilogue: str, compute: str = "", backend: str = ""
    ) -> Any:
        if V.graph.cpp_wrapper:
            return z_by_dispatcher(a, b, bias, epilogue=epilogue, compute=compute, backend=backend)
        name = "with_z_alone" if bias is None else "with_z"
        M, N = a.get_size()[0], b.get_size()[1]
        # The second begins as well aligned as the first.
        further = aligned(M * N)
        asked = epilogue, compute, backend
        both = written(name, [2, M, N], [further, N, 1], (a, b, bias), *asked)
        return select(both, 0, 0), select(both, 0, 1)

    def through_z(
        a: Any, b: Any, z: Any, *, epilogue: str, compute: str = "", backend: str = ""
    ) -> Any:
        if V.graph.cpp_wrapper:
            return through_by_dispatcher(
                a, b, z, epilogue=epilogue, compute=compute, backend=backend
            )
        sizes = [a.get_size()[0], b.get_size()[1]]
        return written("through_z", sizes, None, (a, b, z), epilogue, compute, backend)

    def with_sums(a: Any, b: Any, *, compute: str = "", backend: str = "") -> Any:
        if V.graph.cpp_wrapper:
            return sums_by_dispatcher(a, b, compute=compute, backend=backend)
        M, N = a.get_size()[0], b.get_size()[1]
        further = aligned(M * N)
        all_ = written("with_sums", [further + M], None, (a, b), compute, backend)
        return as_strided(all_, [M, N], [N, 1], 0), as_strided(all_, [M], [1], further)

    return {gemm_with_z: with_z, gemm_through_z: through_z, gemm_with_sums: with_sums}


def works() -> bool:
    """Whether this version of torch has what ``register`` is made of."""
    try:
        from torch._inductor import ir, lowering
    except ImportError:
        return False
    return all(
        hasattr(where, name)
        for where, names in (
            (ir, ("ExternKernelOut", "ExternKernel", "FixedLayout", "TensorBox")),
            (lowering, ("as_strided", "fallback_handler", "lowerings", "register_lowering")),
            (lowering, ("select", "view")),
        )
        for name in names
    )
