"""The process that moves bytes: its program, its jobs, and the daemon's half of it.

Door: `fetcher`.
"""
