"""Conversions of artifacts to images, in child processes with limits. Doors: `conversion`, `environments`."""
