"""The ladder: each rung adds one idea to the one before (its kernel's header says which).

A rung NAME is two files. ``NAME.py`` holds the kernel and how it is launched (``run``).
``NAME_plan.py`` holds its row, what it refuses and how it is planned, and imports no triton.
"""
