"""Products whose communication passes under them, in CUDA: wgmma_overlap.cu, and its launch.

No rung: a call goes through tcgemm.dist.overlap, which owns the memory that the ranks share and
says in which order what is started. docs/lab/several_gpus_protocol.md has the protocol.
"""
