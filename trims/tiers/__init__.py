"""Tiers: bounded kinds of memory behind one protocol (`base`). They act; residency decides."""
