"""Products whose communication passes under them: kernels that wait for, or store to, peers.

No rungs: a call goes through tcgemm.dist.overlap, which owns the memory that the ranks share and
says in which order what is started. docs/lab/several_gpus_protocol.md has the protocol.
"""
