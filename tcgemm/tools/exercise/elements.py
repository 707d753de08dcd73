"""What is said of a C that is not A B, for both languages."""

from __future__ import annotations

from typing import Any


def wrong_elements(a: Any, b: Any, c: Any) -> str | None:
    """How many elements of C are wrong, and the first of them; None where all are right."""
    right = a.double() @ b.double()
    wrong = ~((c.double() - right).abs() <= 0.05)
    count = int(wrong.sum())
    if not count:
        return None
    i, j = (int(each) for each in wrong.nonzero()[0])
    said = (
        f"{count} of {c.numel()} elements of C are wrong at "
        f"{a.shape[0]}x{b.shape[1]}x{a.shape[1]}: "
        f"the first, C[{i}, {j}], is {c[i, j].item():.4g} and should be {right[i, j].item():.4g}"
    )
    if bool(c.isnan().any()):
        said += ". NaN stands behind the ends of A and B, and in C where nothing was stored"
    return said
