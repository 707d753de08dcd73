"""What Triton's interpreter asks of a launch; imports no triton."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

PROGRAMS = 4
"""Programs of a persistent kernel in the interpreter, which runs them one after another."""


def once_a_launch(patch: Callable[[Any], Any], languages: Collection[Any]) -> Callable[[Any], Any]:
    """What is to stand in the place of the interpreter's ``_patch_lang`` during a launch.

    A launch puts the interpreter's functions into Triton's language, and takes them back at its
    end. By itself it puts them there again at each call of a function by the kernel, which looks at
    every name of the language and changes nothing: a quarter of a product's time.

    Args:
        patch: the interpreter's own function.
        languages: the modules in which a function may see the language.
    """
    patched: set[int] = set()  # of these modules, by the launch that runs

    def patch_what_is_not(function: Any) -> Any:
        seen = {
            id(value)
            for value in function.__globals__.values()
            if any(value is language for language in languages)
        }
        if seen and seen <= patched:
            return None  # a call by the kernel, which asks for nothing back
        scope = patch(function)
        restore = getattr(scope, "restore", None)
        if restore is None:
            return scope  # a version of Triton that does not say when a launch ends

        def end() -> None:
            patched.clear()
            restore()

        if not patched:  # the launch itself
            scope.restore = end
        patched.update(seen)
        return scope

    return patch_what_is_not
