"""Credentials for servers of `https:` addresses: headers from a file of the operator's, else a user from a netrc file.

They are read for each transfer, so that a token which is renewed counts at once. They stay in the process that moves
bytes, go over TLS only, and to the host that they are for: no log, manifest or error shows one.
"""

from __future__ import annotations

import base64
import netrc
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trims.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Places where credentials are looked for, for errors.
LOOKED_IN = (
    "the file of the setting `fetch_headers` (lines HOST NAME: VALUE, such as models.example.com Authorization: Bearer "
    "TOKEN), and the file that NETRC names, else ~/.netrc; they go over https only"
)
_LINE = re.compile(r"(\S+)[ \t]+([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(\S.*)\Z")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HostCredentials:
    """Credentials by host.

    Attributes:
        headers: File of headers; empty for none.
        environment: Says where the netrc file is.
    """

    headers: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, address: str) -> dict[str, str]:
        """Return the secret headers for the server of an address; none over plain HTTP. Raises ConfigError."""
        parts = urlsplit(address)
        host = parts.hostname or ""
        if parts.scheme != "https":
            return {}
        names = host, f"{host}:{parts.port or 443}"
        found = {header: value for named, header, value in self._lines() if named.lower() in names}
        return found or self._of_netrc(host)

    def _lines(self) -> list[tuple[str, str, str]]:
        """Return host, name and value of each header in the operator's file."""
        if not self.headers:
            return []
        try:
            with open(self.headers, "rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise ConfigError(f"{self.headers} (`fetch_headers`) is not its owner's alone: chmod 600 it")
                text = file.read(_MOST_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigError(f"{self.headers} (`fetch_headers`) cannot be read: {why}") from None
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.startswith("#"):
                parts = _LINE.match(line.strip())
                if parts is None or not line.isprintable():
                    raise ConfigError(f"line {number} of {self.headers} (`fetch_headers`) is not HOST NAME: VALUE")
                found.append((parts[1], parts[2], parts[3]))
        return found

    def _of_netrc(self, host: str) -> dict[str, str]:
        named = self.environment.get("NETRC", "")
        home = self.environment.get("HOME", "")
        path = Path(named) if named else Path(home, ".netrc")
        if not named and (not home or not path.is_file()):
            return {}
        try:
            entry = netrc.netrc(path).authenticators(host)
        except netrc.NetrcParseError as error:  # whose text may hold a part of a password
            raise ConfigError(f"line {error.lineno} of {path} (netrc) cannot be understood") from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise ConfigError(f"{path} (netrc) cannot be read: {why}") from None
        if entry is None:
            return {}
        user = f"{entry[0]}:{entry[2] or ''}"
        return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
