"""safetensors files and their shards. Door: `converter`."""
