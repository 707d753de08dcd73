"""Options that several commands share: one name, one meaning, one text of help."""

from __future__ import annotations

from typing import Annotated

import typer

_LAYOUT = "A then B, t is stored transposed."
_LAYOUTS = "nn|nt|tn|tt"

Backends = Annotated[
    list[str] | None, typer.Option(help="Only this backend. Repeatable.", metavar="NAME")
]
Kernels = Annotated[
    list[str] | None,
    typer.Option(
        help="Only this kernel, backend/kernel, or your own .cu or .py file. Repeatable.",
        metavar="NAME",
    ),
]
Dtype = Annotated[str, typer.Option(help="Of A and B, e.g. float16, int8.", metavar="NAME")]
OutDtype = Annotated[
    str | None, typer.Option(help="Of C; by default the dtype's own.", metavar="NAME")
]
Layout = Annotated[str, typer.Option(help=_LAYOUT, metavar=_LAYOUTS)]
Layouts = Annotated[list[str] | None, typer.Option(help=f"{_LAYOUT} Repeatable.", metavar=_LAYOUTS)]
Compute = Annotated[
    str | None, typer.Option(help="How products are summed: tf32, ieee, ...", metavar="NAME")
]
Board = Annotated[
    str | None, typer.Option(help="h200, a100, ...; by default the one here, else h200.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
