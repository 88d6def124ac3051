"""Commands about Python environments: env create, list, check, rm."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trims.cli.completion import ENVIRONMENTS, FILES, completed
from trims.cli.output import note, say, say_json, table
from trims.core.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trims.environments.checking import Fault
    from trims.environments.environment_store import EnvironmentStore, Made

_EXAMPLE = "such as 'torch>=2.4,<2.5'; numpy and what else trims needs comes by itself"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    text = "make, list, check and remove Python environments, for models that need other versions"
    env = commands.add_parser("env", help=text, description=text)
    actions = env.add_subparsers(dest="action", metavar="ACTION", required=True)
    _register_create(_add(actions, "create", "make an environment, or find the same one", _create, json=True))
    listed = _add(actions, "list", "all environments, and which models use them", _list, json=True)
    listed.add_argument("--names", action="store_true", help="print names only, without asking the daemon")
    check = _add(actions, "check", "say whether environments work, and what to do if not", _check, json=True)
    completed(check.add_argument("name", nargs="?", help="an environment, or the beginning of it; default: all"),
              ENVIRONMENTS)  # fmt: skip
    remove = _add(actions, "rm", "remove an environment that is not used", _remove)
    completed(remove.add_argument("name", help="an environment, or the beginning of it"), ENVIRONMENTS)
    remove.add_argument("--force", action="store_true", help="even if a process or a registered model uses it")


def _register_create(create: argparse.ArgumentParser) -> None:
    create.add_argument("requirement", nargs="*", help=_EXAMPLE)
    text = "file with one requirement on each line"
    completed(create.add_argument("-r", "--requirements", type=Path, action="append", default=[], help=text), FILES)
    text = "lock file of an environment, to make the same one again"
    completed(create.add_argument("--lock", type=Path, help=text), FILES)
    create.add_argument("--python", default="", help="a version such as 3.10, or a path (default: that of trims)")
    text = "folder with wheels, besides the index"
    completed(create.add_argument("--find-links", type=Path, action="append", default=[], help=text), FILES)
    create.add_argument("--no-index", action="store_true", help="install from such folders only")


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int | None],
    *,
    json: bool = False,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=text, description=text)
    parser.set_defaults(run=run)
    folder = parser.add_argument("--environments-dir", type=Path, help="default: $TRIMS_ENVIRONMENTS_DIR")
    completed(folder, FILES)
    parser.add_argument("--runtime-dir", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _environment_store(options: argparse.Namespace) -> EnvironmentStore:
    """Return the folder of environments, without what killed commands have left in it."""
    from trims.environments.environment_store import EnvironmentStore, default_folder

    env_store = EnvironmentStore(
        default_folder() if options.environments_dir is None else options.environments_dir.absolute()
    )
    for name in env_store.sweep():
        note(f"removed {name}, which an earlier command did not finish")
    return env_store


def _create(options: argparse.Namespace) -> None:
    import trims
    from trims.core.errors import ConfigError
    from trims.environments.create import Request, make
    from trims.environments.requirements import read_requirements

    requirements = read_requirements(options.requirement, options.requirements)
    if (options.lock is None) == (not requirements):
        raise ConfigError("write either requirements, such as torch==2.4.1, or --lock FILE")
    request = Request(
        requirements=tuple(requirements),
        lock=options.lock,
        python=options.python,
        links=tuple(options.find_links),
        offline=options.no_index,
        trims=trims.__version__,
    )
    made, fresh = make(_environment_store(options), request, note)
    if options.json:
        say_json({**_as_json(made), "fresh": fresh})
        return
    say(f"{made.name} {'is ready' if fresh else 'is there already'}: {_format_frameworks(made)}")
    say(f"  python: {made.python}")
    say(f"  lock:   {made.lock_file}")


def _list(options: argparse.Namespace) -> None:
    env_store = _environment_store(options)
    made = env_store.all()
    if options.names:
        for each in made:
            say(each.name)
        return
    from trims.cli.env_users import users_of

    unreadable = env_store.unreadable()
    users = users_of(made, env_store, options.runtime_dir)
    if options.json:
        broken = [{"name": name, "state": "broken", "trouble": why} for name, why in unreadable.items()]
        say_json([*({**_as_json(each), "used_by": _names(users, each)} for each in made), *broken])
        return
    rows = [
        [
            each.name,
            _format_frameworks(each),
            each.python_version,
            format_bytes(each.nbytes),
            "?" if users is None else ", ".join(users.get(each.name, ())),
            "ready" if each.python.exists() else "broken",
        ]
        for each in made
    ]
    rows += [[name, "", "", "", "", "broken"] for name in unreadable]
    columns = ("environment", "frameworks", "python", "size>", "used by", "state")
    table(columns, rows, empty="there are no environments; `trims env create` makes one")
    if users is None and rows:
        note("no daemon answers, so which models use them is not known")


def _names(users: Mapping[str, Sequence[str]] | None, made: Made) -> list[str] | None:
    return None if users is None else list(users.get(made.name, ()))


def _check(options: argparse.Namespace) -> int:
    from trims.environments.checking import check

    env_store = _environment_store(options)
    names = (
        [env_store.find(options.name)]
        if options.name
        else [*(made.name for made in env_store.all()), *env_store.unreadable()]
    )
    found = {name: _faults_of(env_store, name, check) for name in names}
    if options.json:
        say_json({name: [{"what": each.what, "remedy": each.remedy} for each in faults]
                  for name, faults in found.items()})  # fmt: skip
    else:
        _print_faults(found)
    return 1 if any(found.values()) else 0


def _faults_of(env_store: EnvironmentStore, name: str, check: Callable[[Made], list[Fault]]) -> list[Fault]:
    from trims.core.errors import ConfigError
    from trims.environments.checking import Fault

    try:
        made = env_store.read(name)
    except ConfigError as error:
        what, _, remedy = str(error).rpartition("; ")
        return [Fault(what, remedy)]
    return check(made)


def _print_faults(found: Mapping[str, Sequence[Fault]]) -> None:
    for name, faults in found.items():
        say(f"bad   {name}" if faults else f"ok    {name}")
        for fault in faults:
            say(f"      {fault.what}")
        for remedy in dict.fromkeys(fault.remedy for fault in faults):
            say(f"      -> {remedy}")
    if not found:
        say("there are no environments; `trims env create` makes one")


def _remove(options: argparse.Namespace) -> None:
    from trims.cli.env_users import refuse_if_needed

    env_store = _environment_store(options)
    name = env_store.find(options.name)
    if not options.force and not refuse_if_needed(name, env_store, options.runtime_dir):
        note("no daemon answers, so whether a registered model needs it is not known")
    env_store.remove(name, force=options.force)
    say(f"removed {name}")


def _format_frameworks(made: Made) -> str:
    from trims.manifests.manifest import FRAMEWORKS

    return ", ".join(f"{name} {made.versions[name]}" for name in FRAMEWORKS if name in made.versions)


def _as_json(made: Made) -> dict[str, Any]:
    from trims.manifests.manifest import FRAMEWORKS

    return {
        "name": made.name,
        "state": "ready" if made.python.exists() else "broken",
        "python": str(made.python),
        "python_version": made.python_version,
        "platform": made.platform,
        "frameworks": {name: made.versions[name] for name in FRAMEWORKS if name in made.versions},
        "packages": dict(made.versions),
        "requested": list(made.requested),
        "lock": str(made.lock_file),
        "bytes": made.nbytes,
        "tool": made.tool,
        "trims": made.trims,
        "created_s": made.created_s,
    }
