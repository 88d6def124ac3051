"""Pure decisions: no input or output, no clock, no thread, no third-party import.

Doors: `errors`, `manifest`, `layout`, `place`, `units`.
"""
