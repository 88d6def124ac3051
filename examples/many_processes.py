"""Several processes that read one copy: python many_processes.py model.safetensors."""

import subprocess
import sys

import trims

READER = """
import sys, trims
with trims.open_file(sys.argv[1]) as weights:
    print(sum(float(array.sum()) for array in weights.values()), flush=True)
    sys.stdin.read()
"""
COUNT = 4


def main(path: str) -> None:
    """Each process attaches to the same bytes; the daemon counts one lease for each."""
    command = [sys.executable, "-c", READER, path]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(COUNT)
    ]
    answers = {reader.stdout.readline() for reader in readers if reader.stdout}
    with trims.admin() as daemon:
        (replica,) = [each for each in daemon.residents().replicas if each.place == "cpu"]
    print(f"{replica.leases} leases of one copy of {replica.nbytes} bytes; {len(answers)} different answer")
    for reader in readers:
        reader.communicate()


if __name__ == "__main__":
    main(sys.argv[1])
