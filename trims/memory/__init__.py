"""The only code that touches addresses: driver protocols, shared memory, the owner's and the borrower's half.

Doors: `attach`, `segments`, `reading`.
"""
