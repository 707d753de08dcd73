"""Products over several GPUs of a host."""
