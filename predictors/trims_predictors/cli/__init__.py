"""Commands: `trims endpoint`, `run`, `trace`, `call`, `reload`, `unload`. Modules import what they need when run."""
