"""Evaluations: what a start costs from each tier and in each way. Doors: `evaluation.Evaluation`, `report.lines`."""
