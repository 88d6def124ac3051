"""Code that runs in the program's interpreter: as little as possible, and nothing of it is left for the program.

Doors: `template`, `observe`.
"""
