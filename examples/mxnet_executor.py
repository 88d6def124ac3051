"""An MXNet executor over shared parameters: python mxnet_executor.py model-symbol.json."""

import sys

import numpy as np

import trims


def main(path: str) -> None:
    """Run this in MXNet's environment; the daemon needs it too: trims serve --environments mxnet=/path/to/python."""
    with trims.connect() as session, session.open_file(path) as weights:
        executor = trims.mxnet.executor(weights, {"data": (1, 8)})
        (answer, *_) = executor.forward(data=np.ones((1, 8), np.float32))
        print(f"answer {answer.asnumpy().sum():.6g}")


if __name__ == "__main__":
    main(sys.argv[1])
