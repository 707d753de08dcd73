"""Exercises that grade themselves on a laptop: ``tcgemm exercise list | start | check | solution``.

catalogue.py names them, files/ has a starter and a solution of each, cuda.py and python.py grade.
Nothing here needs a GPU: CUDA goes through the simulator, Triton through its interpreter.
"""
