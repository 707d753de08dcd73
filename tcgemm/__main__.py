"""``python -m tcgemm`` is the command ``tcgemm``."""

from .cli import main

main()
