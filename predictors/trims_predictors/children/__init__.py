"""Child processes as the endpoint sees them. Doors: `launcher`, `template_process`, `worker_process`."""
