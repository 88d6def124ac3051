"""Predictor of Hugging Face models: `predictor` is its door; each other file answers some tasks."""
