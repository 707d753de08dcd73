"""Which configuration a rung runs with, and which rung runs; imports no triton and no torch."""
