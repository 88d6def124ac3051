"""Images that a session has mapped, on the host and on devices. Door: `mappings`."""
