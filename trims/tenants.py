"""The tenants file: who shares a machine, which models each may open, and how much it may hold.

A session belongs to a tenant by the socket that it came through (each tenant has one of its own, for containers and
predictors), or by its user. A request to the inference endpoint belongs to one by its bearer token. Sessions of the
daemon's own user on the daemon's own socket belong to no tenant: they are the operator's, and have no limits.

```yaml
blue:
  users: [1001, alice]
  tokens: ["sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"]
  models: ["bert-*", gpt2]
  resident_bytes: 8GiB
  leases: 100
  predictors: 4
```

Not covered: what a quota means (`trims.core.policy.quotas`).
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import logging
import os
import pwd
import re
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from trims.core.errors import CallerError, ConfigError, PermissionDeniedError
from trims.core.policy.quotas import Quota
from trims.core.units import parse_bytes
from trims.documents import load_yaml
from trims.followed_files import read_whole
from trims.manifests.manifest import TRUSTS
from trims.manifests.references import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_TOKEN = re.compile(r"sha256:[0-9a-f]{64}")
_PREFIX = "sha256:"
_SHORTEST_TOKEN = 16
_MOST, _MOST_BYTES = (1 << 31) - 1, (1 << 62) - 1
#: Number that stands for each user that no tenant lists.
ANY_USER = -1


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant.

    Attributes:
        name: Lower-case letters, digits and hyphens.
        users: Numbers of its users; `ANY_USER` for all that no tenant lists.
        tokens: SHA-256 of each bearer token, in hexadecimal.
        models: Patterns of the models that it may open, as of a shell.
        quota: What its sessions may hold in the daemon.
        sessions: Clients that it may have connected at once; None for as many as there may be.
        predictors: Predictors that the endpoint may run for it at once; None for as many as there may be.
        verified: Artifacts are read before they are served to it, whatever the daemon trusts.
    """

    name: str
    users: frozenset[int] = frozenset()
    tokens: frozenset[str] = frozenset()
    models: tuple[str, ...] = ("*",)
    quota: Quota = field(default_factory=Quota)
    sessions: int | None = None
    predictors: int | None = None
    verified: bool = False

    def may_open(self, model: str) -> bool:
        """Return whether a registered model is among those the tenant may open, all its versions included."""
        return any(fnmatch.fnmatchcase(name_of(model), pattern) for pattern in self.models)

    def check(self, model: str) -> None:
        """Raise PermissionDeniedError unless it may open the model."""
        if not self.may_open(model):
            raise PermissionDeniedError(
                f"tenant {self.name!r} may not open {model!r}; it may open {', '.join(self.models) or 'no model'} "
                f"(`models` in the daemon's tenants file)"
            )


class Tenants:
    """All tenants of a daemon; false if there are none.

    Args:
        operator: User of the daemon. It and root belong to no tenant.
    """

    def __init__(self, tenants: Iterable[Tenant] = (), operator: int | None = None) -> None:
        self.by_name = {tenant.name: tenant for tenant in tenants}
        self._operators = {0, os.geteuid() if operator is None else operator}
        self._by_user = {user: tenant for tenant in self.by_name.values() for user in tenant.users}
        self._by_token = {token: tenant for tenant in self.by_name.values() for token in tenant.tokens}

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def renewed(self, found: Tenants) -> Tenants:
        """Return these tenants as a changed file has them; one that it names no more has no user, token or model.

        Sockets, quotas and predictors are made when a process starts: quotas stay, and tenants that the file names
        newly are not among the result, which the log says.
        """
        new = sorted(found.by_name.keys() - self.by_name.keys())
        if new:
            log.warning("tenants that are new count once this process has started again: %s", ", ".join(new))
        gone = {name: Tenant(name, models=()) for name in self.by_name.keys() - found.by_name.keys()}
        now = {**found.by_name, **gone}
        kept = (
            replace(now[name], quota=tenant.quota, predictors=tenant.predictors)
            for name, tenant in self.by_name.items()
        )
        return Tenants(kept)

    def quotas(self) -> dict[str, Quota]:
        """Return the quota of each tenant, by name."""
        return {name: tenant.quota for name, tenant in self.by_name.items()}

    def of_user(self, user: int) -> Tenant | None:
        """Return the tenant of a user; None for the operator, and if there are no tenants.

        Raises PermissionDeniedError.
        """
        if not self or user in self._operators:
            return None
        tenant = self._by_user.get(user) or self._by_user.get(ANY_USER)
        if tenant is None:
            raise PermissionDeniedError(
                f"user {user} belongs to no tenant of this daemon; add it to `users` of one in the tenants file"
            )
        return tenant

    def check_user(self, tenant: Tenant, user: int) -> None:
        """Raise PermissionDeniedError for a user that may not come through a tenant's own socket.

        The operator may, on the tenant's behalf, as predictors and containers do; else only users of the tenant.
        """
        if user in self._operators or user in tenant.users:
            return
        if self._by_user.get(user) is None and ANY_USER in tenant.users:
            return
        raise PermissionDeniedError(
            f"user {user} is none of tenant {tenant.name!r}; add it to its `users` in the tenants file"
        )

    def of_token(self, token: str) -> Tenant | None:
        """Return the tenant whose bearer token this is; None if it is of none."""
        given = hashlib.sha256(token.encode()).hexdigest()
        found = None
        for known, tenant in self._by_token.items():  # all of them: how long this takes must not reveal a token
            if hmac.compare_digest(known, given):
                found = tenant
        return found


def hash_of(token: str) -> str:
    """Return a token's text in the tenants file. Raises CallerError if it is too short to be hard to guess."""
    if len(token) < _SHORTEST_TOKEN:
        raise CallerError(f"a token needs at least {_SHORTEST_TOKEN} characters; `openssl rand -hex 32` makes one")
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def read_tenants(path: Path | None) -> Tenants:
    """Read the tenants file; no tenants without one.

    Raises:
        ConfigError: The file cannot be read or may be changed by others, or something in it is wrong; the message
            names the file, the tenant and the field.
    """
    if path is None:
        return Tenants()
    text, status = read_whole(path, "tenants")
    try:
        raw = load_yaml(text.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"the tenants file {path} cannot be read: {error}") from error
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"the tenants file {path} may be changed by other users; `chmod go-w` it, and own it")
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f"the tenants file {path} must be a mapping of tenants, each with its fields")
    tenants = [_tenant(path, name, fields) for name, fields in raw.items()]
    for what in ("users", "tokens"):
        _check_once(path, what, tenants)
    return Tenants(tenants)


def _tenant(path: Path, name: Any, given: Any) -> Tenant:
    where = f"the tenants file {path}: tenant {name!r}"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has lower-case letters, digits and hyphens, at most 32")
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: must be a mapping of {', '.join(_FIELDS)}")
    unknown = [str(each) for each in given if each not in _FIELDS]
    if unknown:
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(_FIELDS)}")
    values = {}
    for each, value in given.items():
        try:
            values[each] = _FIELDS[each](value)
        except (ValueError, TypeError, ConfigError) as error:
            raise ConfigError(f"{where}: {each}: {value!r} cannot be used: {error}") from error
    quota = {each: values.pop(each) for each in ("leases", "leased_bytes", "resident_bytes") if each in values}
    trust = values.pop("trust", "identity")
    return Tenant(name=name, quota=Quota(**quota), verified=trust == "verified", **values)


def _check_once(path: Path, what: str, tenants: Iterable[Tenant]) -> None:
    """Check that a user or a token stands for one tenant."""
    seen: dict[Any, str] = {}
    for tenant in tenants:
        for each in getattr(tenant, what):
            if each in seen:
                shown = "a token" if what == "tokens" else "'*'" if each == ANY_USER else each
                raise ConfigError(
                    f"the tenants file {path}: {what} of {seen[each]!r} and {tenant.name!r} share {shown}"
                )
            seen[each] = tenant.name


def _users(value: Any) -> frozenset[int]:
    return frozenset(_user(each) for each in ([value] if value == "*" else _list(value)))


def _user(value: Any) -> int:
    if value == "*":
        return ANY_USER
    try:
        text = str(value)
        number = int(text) if _is_number(value) or text.isdecimal() else pwd.getpwnam(text).pw_uid
    except KeyError as error:
        raise ValueError(f"there is no user {value!r} on this machine; give its number") from error
    if number in (0, os.geteuid()):
        raise ValueError(f"user {value} is the operator, who has no limits; run the daemon as another user")
    return int(number)


def _tokens(value: Any) -> frozenset[str]:
    for each in _list(value):
        if not isinstance(each, str) or not _TOKEN.fullmatch(each):
            raise ValueError("a token is given as sha256: and 64 hexadecimal digits; `trims tenants --hash` makes it")
    return frozenset(each.removeprefix(_PREFIX) for each in value)


def _models(value: Any) -> tuple[str, ...]:
    if not all(isinstance(each, str) and each for each in _list(value)):
        raise ValueError("must be names of models, or patterns such as 'bert-*'")
    return tuple(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("must be a list")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _count(value: Any) -> int:
    if not _is_number(value) or value > _MOST:
        raise ValueError(f"must be a whole number from 0 to {_MOST}")
    return int(value)


def _at_least_one(value: Any) -> int:
    if _count(value) == 0:
        raise ValueError("must be 1 or more; leave its tokens out if it may not use the endpoint")
    return int(value)


def _bytes(value: Any) -> int:
    nbytes = parse_bytes(value)
    if nbytes > _MOST_BYTES:
        raise ValueError("must be below 4 EiB")
    return nbytes


def _trust(value: Any) -> str:
    if value not in TRUSTS:
        raise ValueError(f"must be one of {', '.join(TRUSTS)}")
    return str(value)


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "users": _users,
    "tokens": _tokens,
    "models": _models,
    "trust": _trust,
    "sessions": _count,
    "leases": _count,
    "leased_bytes": _bytes,
    "resident_bytes": _bytes,
    "predictors": _at_least_one,
}
