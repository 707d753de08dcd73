"""Exercise 13: a roofline to fill in.

A solution.
"""


def intensity(M, N, K, bytes_per_element=2):
    """Operations for each byte moved."""
    return 2 * M * N * K / ((M * K + K * N + M * N) * bytes_per_element)


def ridge(peak_tflops, bandwidth_gb_s):
    """The intensity at which computing and moving take the same time."""
    return 1000 * peak_tflops / bandwidth_gb_s


def least_us(M, N, K, peak_tflops, bandwidth_gb_s, bytes_per_element=2):
    """The least time in microseconds."""
    compute = 2 * M * N * K / (peak_tflops * 1e6)
    memory = (M * K + K * N + M * N) * bytes_per_element / (bandwidth_gb_s * 1e3)
    return max(compute, memory)
