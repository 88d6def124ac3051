"""A process of the lowest priority, which copies and hashes bytes that no request waits for. Door: `copiers`."""
