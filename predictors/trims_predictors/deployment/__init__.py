"""Deployments: the facts needed to run a model, and their sources. Doors: `deployment` (values), `deployments`."""
