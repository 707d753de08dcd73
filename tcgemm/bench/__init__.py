"""Cases, timing, the run and the results store."""
