"""The inference endpoint: the Open Inference Protocol over HTTP and gRPC, answered by the pool. Door: `main`."""
