"""The few shapes that headline and ladder compare, of those that were timed."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd


def ladder_shape(tables: Sequence[pd.DataFrame]) -> tuple[int, int, int] | None:
    """The one shape at which ladders are compared, (M, N, K); None where nothing was timed.

    4096 cubed where every table timed it, else the largest square, else the largest shape, that
    most kernels of every table were timed on.
    """
    common: set[tuple[int, int, int]] | None = None
    counts: dict[tuple[int, int, int], int] = {}
    for table in tables:
        timed = table[table["tflops"].notna()]
        shapes = [(int(m), int(n), int(k)) for m, n, k in timed[["M", "N", "K"]].to_numpy()]
        for shape in shapes:
            counts[shape] = counts.get(shape, 0) + 1
        common = set(shapes) if common is None else common & set(shapes)
    if not common:
        return None
    if (4096, 4096, 4096) in common:
        return (4096, 4096, 4096)
    return max(common, key=lambda s: (s[0] == s[1] == s[2], counts[s], s[0] * s[1] * s[2], s))


KEY_SQUARES = (1024, 4096, 8192)


def key_shapes(tables: Sequence[pd.DataFrame]) -> list[tuple[int, int, int]]:
    """The few shapes of the headline table: key squares, one decode and one prefill shape.

    Decode and prefill are the median in size of N × K at the least M from 16 to 128 and at the
    largest M from 1024.

    Falls back to the three largest shapes where none of these was timed.
    """
    timed = pd.concat([t[t["tflops"].notna()] for t in tables], ignore_index=True)
    every = sorted({(int(m), int(n), int(k)) for m, n, k in timed[["M", "N", "K"]].to_numpy()})
    keys = [(s, s, s) for s in KEY_SQUARES if (s, s, s) in every]
    wide = [s for s in every if min(s[1:]) >= 1024 and not s[0] == s[1] == s[2]]
    decode = [m for m, _, _ in wide if 16 <= m <= 128]
    prefill = [m for m, _, _ in wide if m >= 1024]
    for m in [*decode[:1], *prefill[-1:]]:
        of_m = sorted((s for s in wide if s[0] == m), key=lambda s: (s[1] * s[2], s))
        keys.append(of_m[len(of_m) // 2])
    return list(dict.fromkeys(keys)) or sorted(every, key=lambda s: (s[0] * s[1] * s[2], s))[-3:]


def at_shape(table: pd.DataFrame, shape: tuple[int, int, int]) -> pd.DataFrame:
    """The rows of one shape."""
    M, N, K = shape
    return table[table["M"].eq(M) & table["N"].eq(N) & table["K"].eq(K)]
