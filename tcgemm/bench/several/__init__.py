"""``tcgemm bench --several``: products over several GPUs, under torchrun."""
