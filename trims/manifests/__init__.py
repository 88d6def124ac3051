"""Manifests: what a model is, and how it is kept and run. Doors: `manifest`, `predictor`, `schema`, `serving`."""
