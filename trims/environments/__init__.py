"""Python environments that trims makes: what lies where, and how one is made, checked and removed.

Doors: `environment_store`, `create`.
"""
