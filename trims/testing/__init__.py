"""Shipped fakes and contract suites, for our tests and for those of plugins."""
