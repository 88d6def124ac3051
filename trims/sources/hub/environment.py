"""Settings of the Hugging Face hub's clients, read from an environment as the hub's own client reads it.

A user who has set up one program for the hub has set up trims: endpoint, cache, token, and whether the network may be
used. Variables that the hub's client still takes under an old name are taken here, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ENDPOINT = "https://huggingface.co"
#: Seconds that the hub is waited for before the cache is used instead.
DEFAULT_TIMEOUT_S = 10.0
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True)
class HubEnvironment:
    """Settings for one hub and its cache.

    Attributes:
        endpoint: Address of the hub, without a slash at its end.
        cache: Folder of the cache (`HF_HUB_CACHE`).
        offline: The network may not be used.
        timeout_s: Seconds that the hub is waited for.
        links: Snapshots may hold symbolic links.
        token_path: File that `hf auth login` keeps a token in.
        token_variable: Name of the variable that holds a token; empty without one.
    """

    endpoint: str
    cache: Path
    offline: bool
    timeout_s: float
    links: bool
    token_path: Path
    token_variable: str
    _variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> HubEnvironment:
        """Read environment variables. Raises ConfigError, which names the variable."""
        home = _folder(variables, variables.get("HF_HOME") or _below_caches(variables))
        cache = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
        token_path = variables.get("HF_TOKEN_PATH")
        return cls(
            endpoint=_endpoint(variables.get("HF_ENDPOINT") or DEFAULT_ENDPOINT),
            cache=_folder(variables, cache) if cache else home / "hub",
            offline=_is_true(variables.get("HF_HUB_OFFLINE") or variables.get("TRANSFORMERS_OFFLINE")),
            timeout_s=_seconds(variables, "HF_HUB_ETAG_TIMEOUT") or DEFAULT_TIMEOUT_S,
            links=not _is_true(variables.get("HF_HUB_DISABLE_SYMLINKS")),
            token_path=_folder(variables, token_path) if token_path else home / "token",
            token_variable=next((n for n in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if variables.get(n)), ""),
            _variables=variables,
        )

    def token(self) -> str:
        """Return the token for the hub; empty without one. Raises ConfigError for one that cannot be read or sent."""
        if _is_true(self._variables.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
            return ""
        where = self.token_variable or str(self.token_path)
        try:
            found = self._variables[where] if self.token_variable else self.token_path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the hub's token cannot be read from {where}: {error}; `hf auth login` writes it"
            ) from error
        token = found.replace("\r", "").replace("\n", "").strip()
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(f"{where} holds letters that no token of a hub has; `hf auth login` writes a new one")
        return token

    @property
    def token_place(self) -> str:
        """Name where a token is looked for, for errors."""
        return self.token_variable or f"HF_TOKEN and {self.token_path}"


def _below_caches(variables: Mapping[str, str]) -> str:
    return f"{variables.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"


def _folder(variables: Mapping[str, str], text: str) -> Path:
    """Return a path with `~` and variables written out."""
    if text == "~" or text.startswith("~/"):
        text = (variables.get("HOME") or str(Path.home())) + text[1:]
    found = Path(_VARIABLE.sub(lambda name: variables.get(name[1] or name[2], name[0]), text))
    return found if found.is_absolute() else Path.cwd() / found


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
    except ValueError:
        known = False
    if not known:
        raise ConfigError(f"HF_ENDPOINT={text!r:.200} is no address of a hub; write one such as {DEFAULT_ENDPOINT}")
    if parts.username or parts.password:
        raise ConfigError("HF_ENDPOINT holds a user or a password; a token belongs in HF_TOKEN")
    return text.rstrip("/")


def _seconds(variables: Mapping[str, str], name: str) -> float:
    text = variables.get(name)
    if not text:
        return 0.0
    if not text.strip().isdecimal():
        raise ConfigError(f"{name}={text!r:.80} is no number of seconds; write a whole number such as 10")
    return float(text)


def _is_true(text: str | None) -> bool:
    return (text or "").upper() in _TRUE
