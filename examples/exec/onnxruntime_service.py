"""Serve an ONNX model over HTTP: python onnxruntime_service.py MODEL.onnx; it prints its port."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])


class Handler(BaseHTTPRequestHandler):
    """Answers a list of numbers with the model's outputs."""

    def do_POST(self) -> None:
        """Run the model."""
        numbers = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = session.get_inputs()[0]
        found = session.run(None, {given.name: np.array(numbers, np.float32)})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found[0].tolist()).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
