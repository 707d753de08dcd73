"""How long a rung's source is: lines of code, without blank ones, comments and docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path


def source_file(kernel: str) -> Path:
    """The module of a rung."""
    return next(Path(__file__).parents[1].glob(f"*/{kernel}.py"))


def source_lines(kernel: str) -> tuple[int, int]:
    """Lines of the kernel's module, and of it with all of triton_kernels that it imports.

    Who chooses the tile (planning/ and the kernel's own plan module) is not counted, as in CUDA: no
    kernel imports it.
    """
    paths, counts = [source_file(kernel)], []
    for path in paths:
        tree = ast.parse(path.read_text())
        counts.append(lines_of_code(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
                names = [folder, *(folder / alias.name for alias in node.names)]
                for other in (name.with_suffix(".py") for name in names):
                    if other.is_file() and other not in paths:
                        paths.append(other)
    return counts[0], sum(counts)


def lines_of_code(path: Path) -> int:
    """Of one file."""
    text = path.read_text()
    return _lines_of_code(text, ast.parse(text))


def _lines_of_code(text: str, tree: ast.Module) -> int:
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)
