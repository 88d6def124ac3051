"""A PyTorch module over shared weights: python torch_module.py linear.safetensors."""

import sys

import torch

import trims


def main(path: str) -> None:
    """The module is built without memory for its parameters, which become views of the shared image."""
    with torch.device("meta"):
        module = torch.nn.Linear(8, 4)
    with trims.connect() as session, session.open_file(path) as weights:
        model = trims.torch.load_into(module, weights)
        with torch.inference_mode():
            print(f"answer {model(torch.ones(1, 8)).sum().item():.6g}")


if __name__ == "__main__":
    main(sys.argv[1])
