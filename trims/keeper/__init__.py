"""The keeper: one process for each GPU. It owns the device's memory for the daemon, and outlives the daemon.

Doors: `client`, `launch`.
"""
