"""A process of the lowest priority, which copies and hashes the bytes that no request waits for."""
