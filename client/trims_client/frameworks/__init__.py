"""Frameworks over attached weights."""
