"""The schemes of object stores: S3, Google Cloud Storage, Azure; reading by signed addresses, and pushing.

Doors: `objects` reads, `push` writes.
"""
