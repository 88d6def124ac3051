"""Benchmarks and evaluations. Doors: `cli`, `report`; the rooms below have their own."""
