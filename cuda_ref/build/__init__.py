"""From sources to what runs: compilers, the store of what they made, rungs as torch operators.

``store`` keeps everything that is compiled, for CUDA extensions and the simulator alike;
``toolchain`` finds the compilers and their flags; ``extensions`` builds rungs for a GPU;
``inspection`` reads what nvcc made of a rung. Importing this package imports no torch.
"""
