"""The specialists: rungs for shapes and types of their own, two files each as in rungs/."""
