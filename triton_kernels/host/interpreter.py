"""What Triton's interpreter asks of a launch; imports no triton."""

from __future__ import annotations

PROGRAMS = 4
"""Programs of a persistent kernel in the interpreter, which runs them one after another."""
