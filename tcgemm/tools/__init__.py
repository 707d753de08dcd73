"""Commands that are neither the library nor the benchmark nor its report, each a file or folder.

A tool imports what it needs of the library and of the measurement, and no other tool.
"""
