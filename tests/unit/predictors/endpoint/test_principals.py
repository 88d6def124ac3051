"""Principals: the operator by its token, tenants by theirs, and what each may ask for."""

from __future__ import annotations

import asyncio

import pytest
from trims_predictors.endpoint.principals import Principals, UnknownCallerError, caller, may_ask_for, require_operator

from trims.core.errors import PermissionDeniedError
from trims.tenants import Tenant, Tenants, hash_of

OPERATOR, BLUE = "the operator's own token", "the token of the blue tenant"
TENANT = Tenant("blue", tokens=frozenset({hash_of(BLUE).removeprefix("sha256:")}))


@pytest.fixture
def callers() -> Principals:
    return Principals(OPERATOR, Tenants([TENANT]))


def test_each_token_names_its_caller(callers: Principals) -> None:
    assert callers.enter(f"Bearer {OPERATOR}") is None
    assert callers.enter(f"Bearer {BLUE}") is TENANT


@pytest.mark.parametrize(
    "given", ["", OPERATOR, BLUE, "Bearer ", "Bearer x", f"bearer{BLUE}", f"Bearer  {BLUE}", f"Basic {BLUE}", "ä"]
)
def test_any_other_header_is_refused(callers: Principals, given: str) -> None:
    with pytest.raises(UnknownCallerError):
        callers.enter(given)


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "bEaReR"])
def test_the_scheme_is_known_in_any_case_of_its_letters(callers: Principals, scheme: str) -> None:
    assert callers.enter(f"{scheme} {OPERATOR}") is None
    assert callers.enter(f"{scheme} {BLUE}") is TENANT
    with pytest.raises(UnknownCallerError):
        callers.enter(f"{scheme} {BLUE.upper()}")


def test_without_a_token_every_request_is_the_operators() -> None:
    assert Principals(None).enter("") is None


def test_only_the_operator_may_give_orders(callers: Principals) -> None:
    async def ask(token: str) -> None:
        callers.enter(f"Bearer {token}")
        await asyncio.sleep(0)
        require_operator("unload models")

    async def both() -> None:
        await asyncio.gather(ask(OPERATOR), asyncio.create_task(ask(OPERATOR)))
        with pytest.raises(PermissionDeniedError, match="tenant 'blue' may not unload models; only the operator"):
            await asyncio.create_task(ask(BLUE))
        assert caller() is None, "the task of a tenant is not this one"

    asyncio.run(both())


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v2/models/m/infer", True),
        ("/openapi.json", True),
        ("/state", False),
        ("/metrics", False),
        ("/ui/state", False),
    ],
)
def test_a_tenant_asks_for_the_protocol_only(path: str, allowed: bool) -> None:
    assert may_ask_for(TENANT, path) is allowed
    assert may_ask_for(None, path)
