"""What an operator does, from Python: python operate_daemon.py model.safetensors."""

import sys

import trims


def main(path: str) -> None:
    """Add a model, pin it, see where it is, free it again."""
    with trims.admin() as daemon:
        changes = daemon.watch()
        model = daemon.add(path, name="example", replace=True)
        daemon.pin(model.name)
        replica = daemon.load(model.name)
        print(f"{model.name}: {replica.nbytes} bytes at {replica.place}, pinned")
        try:
            daemon.evict(model.name)
        except trims.errors.InUseError as error:
            print(f"refused: {error}")
        daemon.unpin(model.name)
        print(f"freed at {', '.join(daemon.evict(model.name, place=None).freed)}")
        print(f"first change: {next(changes).why}")
        changes.close()
        daemon.remove(model.name)


if __name__ == "__main__":
    main(sys.argv[1])
