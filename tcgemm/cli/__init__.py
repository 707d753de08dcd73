"""``tcgemm ...`` and ``python -m tcgemm``: where a command line starts.

What the commands need beyond the library is the extra ``cli``. It is looked for here, so that
without it a sentence is printed and no traceback.
"""

from __future__ import annotations

import sys
from typing import Any

from .. import extras
from ..errors import TcgemmError


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit status 2."""
    try:
        extras.need("cli", "the command line")
        from .application import app

        app()
    except TcgemmError as error:
        print(f"tcgemm: {error}", file=sys.stderr)
        sys.exit(2)


def __getattr__(name: str) -> Any:
    if name == "app":
        from .application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
