"""Commands: `trims endpoint`, `run`, `call`, `reload`, `unload`. Each module imports what it needs when it runs."""
