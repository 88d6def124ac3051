"""ONNX models. Door: `converter`."""
