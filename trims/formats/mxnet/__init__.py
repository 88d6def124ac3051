"""MXNet models. Door: `converter`."""
