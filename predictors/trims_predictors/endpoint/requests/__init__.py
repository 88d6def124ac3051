"""Requests whichever protocol they came by: tensors, parameters, limits, outputs. Doors: `infer_request`, `outputs`."""
