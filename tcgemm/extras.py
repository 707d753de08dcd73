"""What is installed on request: the extras of pyproject.toml, and the one message that names them.

The library itself needs torch and Triton alone. Whoever needs more asks ``need`` first, which says
what is missing and the line that installs it.
"""

from __future__ import annotations

from importlib.util import find_spec

from .errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": ("typer", "rich", "pynvml"),
    "cpu": ("numpy",),  # of Triton's interpreter
    "report": ("numpy", "pandas", "matplotlib", "seaborn", "jinja2"),
}
"""Extra -> the modules that it brings, as they are imported. A module of several extras is asked of
the first."""

PACKAGES = {"pynvml": "nvidia-ml-py"}
"""Module -> the package that brings it, where the two differ in name."""


def install_line(*extras: str) -> str:
    """The command that adds extras to an installed tcgemm."""
    return f"pip install 'tcgemm[{','.join(extras)}]'"


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed, in the extra's order."""
    return [PACKAGES.get(name, name) for name in EXTRAS[extra] if find_spec(name) is None]


def need(extra: str, what: str) -> None:
    """Do nothing where the extra is installed.

    Raises MissingExtraError with the packages that are missing and the line that installs them.

    Args:
        extra: a key of EXTRAS.
        what: what needs it, as the start of a sentence: "tcgemm.kernels()".
    """
    if packages := missing(extra):
        raise _error(extra, what, packages)


def explain(error: ImportError, what: str) -> None:
    """Raise what ``need`` would raise, where an import failed for want of an extra's package."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            raise _error(extra, what, [PACKAGES.get(module, module)]) from error


def _error(extra: str, what: str, packages: list[str]) -> MissingExtraError:
    *rest, last = packages
    names = f"{', '.join(rest)} and {last}" if rest else last
    which = "which are not installed" if rest else "which is not installed"
    return MissingExtraError(f"{what} needs {names}, {which}: {install_line(extra)}")
