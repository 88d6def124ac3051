"""Inference servers of other projects, in an environment of their own: they are asked, and never imported here.

Door: `serving`.
"""
