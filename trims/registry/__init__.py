"""Registries, where manifests are found. sqlite keeps them on this machine; the protocol leaves room for others.

Doors: `base` (the protocol), `opening`.
"""
