"""Matrices whose surroundings show what is read beside them."""

import torch


def padded(rows, cols, dtype, transposed, fill):
    """A matrix of that shape in a NaN-filled buffer whose rows are 16-byte aligned."""
    height, width = (cols, rows) if transposed else (rows, cols)
    buffer = torch.full((height + 1, -(-width // 8) * 8 + 8), float("nan"), dtype=dtype)
    view = buffer[:height, :width]
    view.copy_(fill(height, width))
    return view.mT if transposed else view
