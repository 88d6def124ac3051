"""The schemes `http` and `https`, and the HTTP client that the other schemes read with.

Doors: `Http` (the client), `HttpSource`, `Hosts` (the policy of what may be reached).
"""
