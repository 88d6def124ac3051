"""Isolation of a child from the machine: namespaces, Landlock, seccomp. Door: `sandbox`."""
