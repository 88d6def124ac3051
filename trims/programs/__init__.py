"""Unmodified programs that start from templates (`trims exec`). Doors: `launch` for the command, `host` for a template.

`inside/` runs in the program's own interpreter, which may be any Python from 3.10 on, without our packages.
"""
