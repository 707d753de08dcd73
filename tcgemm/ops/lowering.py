"""How Inductor writes a product: a call that fills a buffer of its own, as those of torch.mm.

Left to itself Inductor calls an operator that it does not know through the dispatcher, some ten
times as long as a launch takes, and lets it allocate its result: that is in no memory plan, and the
kernels that read it are made for any alignment.
"""

from __future__ import annotations

from typing import Any

from . import operator

_HERE = "tcgemm.ops.compiled"


def register() -> None:
    """Give Inductor, which is loaded, the way to write ``tcgemm::gemm``."""
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

    lowerings.pop(operator.gemm, None)
    register_lowering(operator.gemm, type_promotion_kind=None)(lowered)


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
            (lowering, ("fallback_handler", "lowerings", "register_lowering", "view")),
        )
        for name in names
    )
