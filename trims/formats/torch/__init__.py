"""PyTorch checkpoints. Door: `converter`."""
