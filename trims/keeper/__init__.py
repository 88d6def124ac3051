"""The keeper: one process for each GPU, which owns its memory for the daemon and outlives it."""
