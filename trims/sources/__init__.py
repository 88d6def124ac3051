"""Places where artifacts and images come from: one module for each scheme of addresses, and the transfer above them.

Doors: `Addresses` (what an address means), `Fetcher` (the daemon's half of the process that moves bytes), `Lock` (what
was seen at an address before). `Source` is for plug-ins: the entry-point group `trims.sources`.
"""
