"""An ONNX Runtime session over shared initializers: python onnxruntime_session.py model.onnx."""

import sys

import numpy as np

import trims


def main(path: str) -> None:
    """The daemon optimizes the graph once; every session after that shares the weights."""
    with trims.connect() as session, session.open_file(path) as weights:
        runtime = trims.onnxruntime.session(weights)
        (given,) = runtime.get_inputs()
        shape = [size if isinstance(size, int) else 1 for size in given.shape]
        (answer, *_) = runtime.run(None, {given.name: np.ones(shape, np.float32)})
        print(f"answer {answer.sum():.6g}")


if __name__ == "__main__":
    main(sys.argv[1])
