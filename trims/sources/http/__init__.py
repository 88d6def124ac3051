"""The schemes `http` and `https`, and the HTTP client that the other schemes read with.

Doors: `client`, `source`, `hosts` (the policy of what may be reached).
"""
