"""Exercise 13: a roofline to fill in.

A GPU makes `peak_tflops` 10^12 operations a second and moves `bandwidth_gb_s` 10^9 bytes a second.
C[M, N] = A[M, K] B[K, N] makes 2 M N K operations and moves A, B and C once, `bytes_per_element`
each. Fill in the three functions.
"""


def intensity(M, N, K, bytes_per_element=2):
    """Operations for each byte moved."""
    return 2 * M * N * K / (M * N * bytes_per_element)


def ridge(peak_tflops, bandwidth_gb_s):
    """The intensity at which computing and moving take the same time."""
    return 0.0


def least_us(M, N, K, peak_tflops, bandwidth_gb_s, bytes_per_element=2):
    """The least time in microseconds."""
    return 0.0
