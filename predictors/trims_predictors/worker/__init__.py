"""Programs of a child: the worker that answers requests, the template it is forked from. Doors: both of these.

Doors: `worker`, `template`.
"""
