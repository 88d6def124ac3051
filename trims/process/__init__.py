"""Child processes: how programs of ours are started. Door: `python`."""
