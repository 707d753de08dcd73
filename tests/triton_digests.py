"""A program: reads compile_only's requests as JSON, writes a digest of what each is compiled from;
an empty one where no launch can be formed.

Triton is stopped where it would compile, and is asked for what it would compile: the code of the
kernel and of all that it calls, the signature, the constants, the options, the target.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from triton.runtime import driver
from triton.runtime.jit import JITCallable, JITFunction


def plain(source: str) -> str:
    """A function without its comments and docstring."""
    tree = ast.parse(source)
    (function,) = tree.body
    if ast.get_docstring(function) is not None:  # type: ignore[arg-type]
        function.body = function.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def without_place(construct: Any) -> Any:
    """Triton's own digest of a function holds its text and its line: here its code alone."""

    def init(self: Any, fn: Any, *given: Any, **named: Any) -> None:
        construct(self, fn, *given, **named)
        self._src = plain(self._src)
        self.starting_line_number = 0

    return init


def name_of(value: Any) -> str:
    """A constant as text that is the same in every process."""
    if isinstance(value, JITCallable):
        return value.cache_key
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(name_of, value))})"
    text = str(getattr(value, "value", value))
    if " at 0x" in text:
        raise TypeError(f"a constant has no name of its own: {text}")
    return text


def leave_out_comments_and_lines() -> None:
    """Before the modules of the kernels are imported."""
    JITCallable.__init__ = without_place(JITCallable.__init__)


def main() -> None:
    leave_out_comments_and_lines()
    compile_only = import_module("tcgemm.triton_kernels.inspection.compile_only")
    made_from: list[list[str]] = []

    def record(
        self: JITFunction, key: Any, signature: Any, device: Any, constants: Any, options: Any,
        attributes: Any, warmup: bool,
    ) -> None:  # fmt: skip
        target = driver.active.get_current_target()
        given = dict(vars(options))
        # Which file of its own wheel Triton links is Triton's; its folder is this machine's.
        given["extern_libs"] = [Path(path).name for _, path in given["extern_libs"]]
        made_from.append(
            [
                self.cache_key,
                *(f"{name}: {kind}" for name, kind in signature.items()),
                *(f"{at} = {name_of(value)}" for at, value in constants.items()),
                *(f"{at}: {attribute}" for at, attribute in attributes.items()),
                *(f"{name} = {value}" for name, value in sorted(given.items())),
                f"{target.backend} {target.arch} {target.warp_size}",
            ]
        )

    JITFunction._do_compile = record  # nothing is compiled
    digests = []
    for raw in json.load(sys.stdin):
        request = compile_only.Request(**{**raw, "capability": tuple(raw["capability"])})
        driver.set_active(compile_only._Driver(request.capability))
        made_from.clear()
        with contextlib.suppress(Exception):
            compile_only._compile(request)
        text = "\0".join(*made_from) if made_from else ""
        digests.append(text and hashlib.sha256(text.encode()).hexdigest()[:16])
    print("\n" + json.dumps(digests))


if __name__ == "__main__":
    main()
