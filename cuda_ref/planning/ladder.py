"""The rungs' Python files, found in rungs/ and shapes/.

A rung is two files in one of these folders: ``<name>.cu`` and ``<name>.py``. The Python file has

- ``ORDER``: its place on the ladder, a number;
- ``ROW``: what dispatch reads (see rows.py), with its refusal and its plan;
- ``TUNING``, where it has settings that tables hold (see tuning.py);
- ``cost(problem, sms)``, where a model says how long it takes: microseconds, or None where it is
  not to be chosen for the problem; and ``settled(problem, sms)``, whether it was measured to be
  fastest whatever models say (see choose.py);
- ``offered(problem, sms)``, where plans besides ``ROW``'s are worth a look (see offered.py);
- ``only_by_name(problem)``, whether another rung is faster always, and ``sure(problem)``, whether
  the model of drawn shapes is not asked once this one is chosen, nor a shipped table where it is
  settled;
- ``instance(problem, plan)``, where its template has parameters that inspection.py does not
  know.

No other file names a rung.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..build.toolchain import ROOT

if TYPE_CHECKING:
    from .tuning import Tuning

FOLDERS = ("rungs", "shapes")


@cache
def modules() -> tuple[ModuleType, ...]:
    """The Python files of all rungs, in ladder order."""
    package = __package__.rpartition(".")[0]
    found = [
        import_module(f"{package}.{folder}.{info.name}")
        for folder in FOLDERS
        for info in iter_modules([str(ROOT / folder)])
        if (ROOT / folder / f"{info.name}.cu").is_file()
    ]
    return tuple(sorted(found, key=lambda module: int(module.ORDER)))


@cache
def by_name() -> dict[str, ModuleType]:
    """Name -> Python file of the rung."""
    return {module.ROW["name"]: module for module in modules()}


@cache
def tunings() -> dict[str, Tuning]:
    """Name -> settings, of the rungs that have them."""
    return {name: module.TUNING for name, module in by_name().items() if hasattr(module, "TUNING")}


def rows() -> tuple[dict[str, Any], ...]:
    """The rows of all rungs, in ladder order; those in shapes/ are specialists."""
    return tuple(
        {**module.ROW, "kind": "shape" if ".shapes." in module.__name__ else "ladder"}
        for module in modules()
    )
