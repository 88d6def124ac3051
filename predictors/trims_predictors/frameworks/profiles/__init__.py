"""Profiles of single runs by the frameworks' own profilers, as events with ids; no framework is imported."""
