"""Two runs beside each other: what became faster, what slower, and what cannot be said."""
