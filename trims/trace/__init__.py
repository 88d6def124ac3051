"""Spans: what took how long, with how many bytes. Tracing that fails is dropped, not obeyed.

Doors: `spans`, `recorder`, `reader`.
"""
