"""Templates: processes that have imported modules, keep one thread and fork. Door: `fork_loop`; roles are elsewhere."""
