"""Kernels that had another name when they were measured: the one place that knows of them.

Stored rows are measured facts and are never edited; a reader sees them under the name that the same
machine code has now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

Row = Mapping[str, str]


def _beyond_plain(row: Row) -> bool:
    """Whether more ran than a plain product of 16-bit operands summed in float32."""
    plain = row["dtype_in"] in ("float16", "bfloat16") and row["compute"] in ("", "float32")
    return row["status"] != "unsupported" and (not plain or bool(row["fused"]))


RENAMED: dict[tuple[str, str], tuple[str, Callable[[Row], bool]]] = {
    ("triton", "pipelined"): ("fused", _beyond_plain),
}
"""(backend, kernel) of a row -> its name now, where the condition holds. Before 2026-11-22 triton's
pipelined was one kernel with what is fused's now; both compile a plain product of 16 bits to the
same machine code (docs/lab/house_sass_triton.csv), so these rows stay pipelined's."""


def kernel_now(row: Row) -> str:
    """The name of the kernel that a stored row is about."""
    now, applies = RENAMED.get((row["backend"], row["kernel"]), (row["kernel"], lambda row: False))
    return now if applies(row) else row["kernel"]
