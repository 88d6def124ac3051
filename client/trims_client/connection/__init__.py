"""A session's connection to the daemon. Door: `connection`."""
