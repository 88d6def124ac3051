"""Data that crosses process borders: frames and messages of the attach door, gRPC of the control door, addresses.

The attach door's half needs the standard library only.

Doors: `messages`, `frames`, `address`.
"""
