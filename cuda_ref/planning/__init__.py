"""How problems are planned: the ladder of rungs, their settings, their costs and the choice.

What tools need of it stands here by name: the tables of settings (read, check, user_path, forget),
the settings of a rung (RUNGS, candidates, divide) and the GPU.
"""

from __future__ import annotations

from .gpu import here
from .ladder import tunings
from .tables import check, read, user_path
from .tuning import candidates, divide, fastest, modelled_us, plan

__all__ = [
    "DIVIDING",
    "RUNGS",
    "candidates",
    "check",
    "divide",
    "fastest",
    "forget",
    "gpu_here",
    "modelled_us",
    "plan",
    "read",
    "user_path",
]


def __getattr__(name: str) -> tuple[str, ...]:
    if name in ("RUNGS", "DIVIDING"):  # rungs that can be tuned, all of which may divide K
        return tuple(tunings())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def forget() -> None:
    """Read all tables anew from now on."""
    from . import choose, tables, tuning

    tables.forget()
    tuning.plan.cache_clear()
    choose.forget()


def gpu_here() -> tuple[str, int, int]:
    """(table's name, bytes of shared memory a block, SMs); nothing where there is no GPU."""
    found = here()
    return (found.name, found.shared_bytes, found.sms) if found else ("", 0, 0)
