"""Shipped fakes and contract suites, for our tests and for those of plugins.

Doors: `tiers`, `registries`, `sources`, `policies`, `converters`, `in_place`.
"""
