"""Whether the kernels are right: drawn calls, made, run and judged (``tcgemm verify``)."""
