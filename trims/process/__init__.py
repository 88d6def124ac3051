"""Child processes. Doors: `child` starts those that this process talks to, `oneshot` and `python` the others."""
