"""``tcgemm show-kernel``: what a compiler made of a rung."""
