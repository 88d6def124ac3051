"""Principals of requests: the operator, or the tenant whose bearer token a request brings."""

from __future__ import annotations

import hmac
from contextvars import ContextVar
from typing import TYPE_CHECKING

from trims.core.errors import PermissionDeniedError
from trims.tenants import Tenants
from trims_predictors.endpoint.generate.openai_errors import is_openai

if TYPE_CHECKING:
    from trims.tenants import Tenant

#: Scheme of the header, in any case of its letters (RFC 7235).
_SCHEME = "bearer"
#: Paths that a tenant may ask for; all others are the operator's.
_OF_TENANTS = ("/v2", "/functions", "/openapi.json")
#: Tenant of the request that the running task answers; None for the operator.
_caller: ContextVar[Tenant | None] = ContextVar("caller", default=None)


class UnknownCallerError(Exception):
    """The token is missing or wrong."""


class Principals:
    """Principals that may ask.

    Args:
        token: The operator's; None if requests need none.
        tenants: Tenants that have tokens of their own.
    """

    def __init__(self, token: str | None, tenants: Tenants | None = None) -> None:
        self.replace(token, tenants or Tenants())

    def replace(self, token: str | None, tenants: Tenants) -> None:
        """Have other tokens count from the next request on."""
        self._expected = None if token is None else token.encode()
        self._tenants = tenants

    def enter(self, authorization: str) -> Tenant | None:
        """Let the running task act for the caller that the header `Authorization` names. Raises UnknownCallerError.

        Returns the tenant, None for the operator.
        """
        tenant = self._of(authorization)
        _caller.set(tenant)
        return tenant

    def _of(self, authorization: str) -> Tenant | None:
        if self._expected is None:
            return None
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != _SCHEME:
            raise UnknownCallerError
        if hmac.compare_digest(token.encode(errors="replace"), self._expected):
            return None
        tenant = self._tenants.of_token(token)
        if tenant is None:
            raise UnknownCallerError
        return tenant


def caller() -> Tenant | None:
    """The tenant for which the running task acts; None for the operator."""
    return _caller.get()


def caller_name() -> str:
    """Return the name of the tenant for which the running task acts; empty for the operator."""
    tenant = _caller.get()
    return "" if tenant is None else tenant.name


def require_operator(what: str) -> None:
    """Raises PermissionDeniedError for a tenant."""
    tenant = _caller.get()
    if tenant is not None:
        raise PermissionDeniedError(f"tenant {tenant.name!r} may not {what}; only the operator of this endpoint may")


def may_ask_for(tenant: Tenant | None, path: str) -> bool:
    """Return whether a path is one of those that tenants may ask for, if it is a tenant that asks."""
    return tenant is None or path.startswith(_OF_TENANTS) or is_openai(path)
