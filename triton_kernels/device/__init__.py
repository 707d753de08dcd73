"""What kernels share on the GPU: the order of tiles, the multiply, the epilogue, split-K sums."""
