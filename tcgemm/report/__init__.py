"""Stored rows -> derived columns -> figures, HTML, Markdown."""
