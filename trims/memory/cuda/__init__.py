"""Memory on CUDA devices: what the driver can do (`api`), and the two ways to share with it (`drivers`)."""
