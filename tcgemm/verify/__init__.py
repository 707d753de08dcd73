"""Whether the kernels are right: calls drawn at random, made, run and judged."""
