"""Shell completion: commands and options by shtab, and values: names of models and environments, places, files.

An argument says what its values are by its attribute `complete`, as shtab reads it: what each shell calls.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

HOW = 'for bash: eval "$(trims completion bash)"'
SHELLS = ("bash", "zsh", "tcsh")
#: Commands that complete files, as `shtab.FILE` has them; shtab is imported only when a script is asked for.
FILES: Mapping[str, str] = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
MODELS: Mapping[str, str] = {"bash": "_trims_models", "zsh": "_trims_models"}
ENVIRONMENTS: Mapping[str, str] = {"bash": "_trims_environments", "zsh": "_trims_environments"}
PLACES: Mapping[str, str] = {"bash": "_trims_places", "zsh": "_trims_places"}
_PLACE_NAMES = "auto cpu disk file gpu gpu:0"
#: The daemon is asked for names; if none answers, there are none to offer.
_NAMES = "trims list --names 2>/dev/null"
_ENVIRONMENT_NAMES = "trims env list --names 2>/dev/null"
_FUNCTIONS: Mapping[str, str] = {
    "bash": f"""
_trims_models() {{ compgen -W "$({_NAMES})" -- "$1"; }}
_trims_environments() {{ compgen -W "$({_ENVIRONMENT_NAMES})" -- "$1"; }}
_trims_places() {{ compgen -W "{_PLACE_NAMES}" -- "$1"; }}
""",
    "zsh": f"""
_trims_models() {{ local -a names; names=($({_NAMES})); compadd -a names; }}
_trims_environments() {{ local -a names; names=($({_ENVIRONMENT_NAMES})); compadd -a names; }}
_trims_places() {{ compadd {_PLACE_NAMES}; }}
""",
}


def completed(argument: argparse.Action, how: Mapping[str, str]) -> argparse.Action:
    """Return the argument, whose values a shell completes from now on."""
    argument.complete = how  # type: ignore[attr-defined]
    return argument


def write_script(parser: argparse.ArgumentParser, shell: str) -> None:
    """Print the script for a shell, one of `SHELLS`."""
    import shtab

    sys.stdout.write(shtab.complete(parser, shell, preamble=dict(_FUNCTIONS)))  # type: ignore[arg-type]
