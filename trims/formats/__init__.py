"""Artifacts become images here: converters, the child processes they run in, and builders of artifacts.

Doors: `base` (the protocol), `plugins`, `folders`.
"""
