"""How long a rung's source is: lines of code, without blank ones, comments and docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path


def source_lines(kernel: str) -> tuple[int, int]:
    """Lines of the rung's module, and of it with all of this package that it imports.

    But for plans.py: who chooses the tile is not counted, as in CUDA.
    """
    folder = Path(__file__).parent
    paths, counts = [folder / f"{kernel}.py"], []
    for path in paths:
        tree = ast.parse(path.read_text())
        counts.append(_lines_of_code(path.read_text(), tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [node.module] if node.module else [alias.name for alias in node.names]
                for other in (folder / f"{name}.py" for name in names if name != "plans"):
                    if other.is_file() and other not in paths:
                        paths.append(other)
    return counts[0], sum(counts)


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
