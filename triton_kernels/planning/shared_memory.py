"""How much shared memory the stages of a main loop take."""

from __future__ import annotations

from collections.abc import Mapping

from ..host.storage import itemsize
from .dtypes import kind

THROUGH_REGISTERS = {"tf32": 1, "tf32x3": 2, "uint8": 1, "ieee": 0, "float64": 0}
"""Kinds whose blocks pass through registers, and copies of B's that go back to shared memory. The
slot of the step at work is free by then: they need one less."""


def stage_bytes(config: Mapping[str, int], dtype_in: str, compute: str) -> int:
    """Upper bound of what the stages of A and B take in a program, in bytes."""
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    slots, copies = config.get("NUM_STAGES", 1), 0
    name = kind(dtype_in, compute)
    if name in THROUGH_REGISTERS and not (name == "tf32" and config.get("REPACK")):
        slots, copies = max(slots - 1, 1), THROUGH_REGISTERS[name]
    return (slots * (m + n) + copies * n) * k * itemsize(dtype_in)


def tile_bytes(config: Mapping[str, int], dtype_out: str) -> int:
    """The bytes of a tile of C."""
    return config["BLOCK_M"] * config["BLOCK_N"] * itemsize(dtype_out)
