"""`make gpu-check`: what a machine with a GPU says of the GPU tier, in one JSON file.

    python -m trims_bench.gpu_check --out bench/results/gpu.json

See `trims_bench.gpu.check`. With `--fake` it runs without a device, to see that it works.
"""

from __future__ import annotations

import sys

from trims_bench.gpu.needs import say_missing

if __name__ == "__main__":
    if not say_missing(driver="fake" not in " ".join(sys.argv)):
        sys.exit(1)
    from trims_bench.gpu.check import main

    sys.exit(main())
