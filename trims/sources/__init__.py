"""Places where artifacts and images come from: one module for each scheme of addresses, and the transfer above them.

Doors: `remote` (addresses as files of this machine), `schemes` (the source for an address), `lock` (what was seen at an
address before). `base` has the protocol for plug-ins: the entry-point group `trims.sources`.
"""
