"""What a model needs to be run, and where that is known from. Doors: `deployment` (values), `deployments`."""
