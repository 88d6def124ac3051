"""Commands. Modules import what they need when run. Doors: `endpoint`, `run`, `trace`, `call`."""
