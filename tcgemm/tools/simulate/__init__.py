"""``tcgemm simulate``: CUDA kernels counted and checked on a CPU; the order of tiles."""
