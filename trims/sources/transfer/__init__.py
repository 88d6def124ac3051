"""Transfers of bytes from an opened address to memory: pieces, checksums, journals, limits.

Door: `transfer`.
"""
