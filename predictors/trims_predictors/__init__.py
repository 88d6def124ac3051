"""Isolated predictors (not built yet)."""
