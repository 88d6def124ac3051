"""The Open Inference Protocol and health over gRPC. Door: `service`."""
