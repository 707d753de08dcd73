"""The specialists: kernels for shapes that the ladder serves badly. Two files each, as a rung."""
