"""Evaluations that the endpoint's clients order, watch and read. Door: `routes`, which an entry point names."""
