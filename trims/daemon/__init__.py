"""The daemon: configuration, the two doors, and the process that holds them open. Doors: `main`, `config`."""
