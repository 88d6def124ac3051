"""Workers of all deployments, and which of them answers which request. Door: `pool`."""
