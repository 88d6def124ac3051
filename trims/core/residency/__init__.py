"""Residency: which image is where, who reads it, what must go. A pure state machine. Doors: `residency`, `events`."""
