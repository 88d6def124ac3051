"""The policy of hosts: which address is reached for whom."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from trims.core.errors import AddressRefusedError, ConfigError, SourceUnavailableError
from trims.sources.http.hosts import HostPolicy

NOBODY, NAMED, ALLOWED = HostPolicy(), HostPolicy().naming("Host"), HostPolicy.parse(["host"])


@pytest.mark.parametrize(
    ("address", "reached_by"),
    [
        ("8.8.8.8", (NOBODY, NAMED, ALLOWED)),
        ("2606:4700::1111", (NOBODY, NAMED, ALLOWED)),
        ("127.0.0.1", (NAMED, ALLOWED)),
        ("10.1.2.3", (NAMED, ALLOWED)),
        ("100.64.0.1", (NAMED, ALLOWED)),
        ("::1", (NAMED, ALLOWED)),
        ("::ffff:10.0.0.1", (NAMED, ALLOWED)),
        ("64:ff9b::a00:1", (NAMED, ALLOWED)),
        ("2002:0a00:0001::", (NAMED, ALLOWED)),
        ("169.254.169.254", (ALLOWED,)),
        ("::ffff:169.254.169.254", (ALLOWED,)),
        ("64:ff9b::a9fe:a9fe", (ALLOWED,)),
        ("2002:a9fe:a9fe::", (ALLOWED,)),
        ("fe80::1%eth0", (ALLOWED,)),
        ("fd00:ec2::254", (ALLOWED,)),
        ("100.100.100.200", (ALLOWED,)),
        ("224.0.0.1", (ALLOWED,)),
        ("0.0.0.0", (ALLOWED,)),
    ],
)
def test_an_address_is_reached_by_those_that_the_policy_lets(address: str, reached_by: tuple[HostPolicy, ...]) -> None:
    for policy in (NOBODY, NAMED, ALLOWED):
        if policy in reached_by:
            policy.check("HOST", address)
        else:
            with pytest.raises(AddressRefusedError) as raised:
                policy.check("HOST", address)
            assert raised.value.code == "address_refused"


def test_a_network_of_the_operator_is_reached_whatever_it_is() -> None:
    policy = HostPolicy.parse(["169.254.0.0/16", " [fd00:ec2::254] ", ""])
    policy.check("any", "169.254.169.254")
    policy.check("any", "fd00:ec2::254")
    with pytest.raises(AddressRefusedError):
        policy.check("any", "10.0.0.1")


@pytest.mark.parametrize("text", ["10.0.0.0/99", "host:80", "1.2.3", "8080"])
def test_a_list_of_hosts_with_none_in_it_names_the_culprit(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        HostPolicy.parse(["good.lan", text])


def test_an_unknown_name_is_a_source_that_does_not_answer() -> None:
    def lookup(*_: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(SourceUnavailableError, match=r"models\.example"):
        HostPolicy(lookup=lookup).addresses_of("models.example", 80)


def test_a_name_with_one_refused_address_is_refused() -> None:
    def lookup(host: str, port: int, *_: Any) -> list[Any]:
        del host
        return [(2, 1, 0, "", (address, port)) for address in ("8.8.8.8", "127.0.0.1")]

    with pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1"):
        HostPolicy(lookup=lookup).addresses_of("models.example", 80)


def test_a_number_is_checked_and_a_name_is_left_to_its_look_up() -> None:
    NOBODY.check_number("models.example")
    with pytest.raises(AddressRefusedError):
        NOBODY.check_number("10.0.0.1")
