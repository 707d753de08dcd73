"""``tcgemm warm``: everything that calls on a GPU are likely to need, compiled ahead."""
