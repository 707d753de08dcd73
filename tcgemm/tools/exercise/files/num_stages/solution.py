"""Exercise 12: how many stages fit?

A solution.
"""


def num_stages(block_m, block_n, block_k, bytes_per_element=2, c_bytes=0):
    """The largest number of stages that fits into 227 KB beside ``c_bytes``."""
    stage = (block_m + block_n) * block_k * bytes_per_element
    return max(0, 227 * 1024 - c_bytes) // stage
