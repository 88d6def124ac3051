"""Tensors of a checkpoint as read-only numpy views: python numpy_arrays.py model.safetensors."""

import sys

import trims


def main(path: str) -> None:
    """Print what the file holds. Nothing is copied, however large it is."""
    with trims.open_file(path) as weights:
        for name, array in weights.items():
            print(f"{name}: {array.dtype} {array.shape}, sum {array.sum():.6g}")
        print(f"{weights.nbytes} bytes at {weights.place}, {'resident before' if weights.warm else 'loaded now'}")


if __name__ == "__main__":
    main(sys.argv[1])
