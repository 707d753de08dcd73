"""The ladder: one idea a rung, in <name>.cu and, what one must know of it, in <name>.py."""
