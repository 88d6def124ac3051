"""Artifacts become images here: converters, the child processes they run in, and builders of artifacts."""
