"""The tenants file: what each field means, and what is wrong with a file that is refused."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from trims.core.errors import CallerError, ConfigError, PermissionDeniedError
from trims.core.policy.quotas import Quota
from trims.tenants import ANY_USER, Tenant, Tenants, hash_of, read_tenants

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "0123456789abcdef"


def written(folder: Path, text: str) -> Path:
    path = folder / "tenants.yaml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_every_field_of_a_tenant_is_read(tmp_path: Path) -> None:
    other = next(user for user in pwd.getpwall() if user.pw_uid not in (0, os.geteuid()))
    text = f"""
      blue:
        users: [4001, {other.pw_name}]
        tokens: ["{hash_of(TOKEN)}"]
        models: ["bert-*", gpt2]
        trust: verified
        sessions: 9
        leases: 8
        leased_bytes: 7MiB
        resident_bytes: 6MiB
        predictors: 5
    """
    tenants = read_tenants(written(tmp_path, text))
    blue = tenants.by_name["blue"]
    assert blue == Tenant(
        name="blue",
        users=frozenset({4001, other.pw_uid}),
        tokens=frozenset({hash_of(TOKEN).removeprefix("sha256:")}),
        models=("bert-*", "gpt2"),
        quota=Quota(8, 7 << 20, 6 << 20),
        sessions=9,
        predictors=5,
        verified=True,
    )
    assert tenants.of_user(4001) is tenants.of_token(TOKEN) is blue
    assert tenants.of_token("another token, not known") is None
    assert tenants.quotas() == {"blue": blue.quota}


def test_a_tenant_without_fields_may_open_all_without_limits(tmp_path: Path) -> None:
    tenant = read_tenants(written(tmp_path, "blue: {}")).by_name["blue"]
    assert tenant == Tenant("blue")
    assert tenant.may_open("anything")
    assert tenant.quota == Quota()


def test_without_a_file_there_are_no_tenants_and_every_user_is_an_operator() -> None:
    tenants = read_tenants(None)
    assert not tenants
    assert tenants.of_user(4001) is None


def test_models_are_patterns_and_the_error_names_them() -> None:
    tenant = Tenant("blue", models=("bert-*", "gpt2"))
    assert [tenant.may_open(name) for name in ("bert-base", "gpt2", "gpt22", "BERT-base")] == [True, True, False, False]
    with pytest.raises(PermissionDeniedError, match=r"tenant 'blue' may not open 'vgg'; it may open bert-\*, gpt2"):
        tenant.check("vgg")


def test_a_user_that_no_tenant_lists_is_refused_unless_one_takes_all(tmp_path: Path) -> None:
    tenants = read_tenants(written(tmp_path, "blue: {users: [4001]}"))
    with pytest.raises(PermissionDeniedError, match="user 4002 belongs to no tenant"):
        tenants.of_user(4002)
    tenants = read_tenants(written(tmp_path, "blue: {users: [4001]}\nothers: {users: '*'}"))
    assert [tenants.of_user(user).name for user in (4001, 4002)] == ["blue", "others"]  # type: ignore[union-attr]
    assert tenants.of_user(0) is None
    assert tenants.of_user(os.geteuid()) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "must be a mapping of tenants"),
        ("[blue]", "must be a mapping of tenants"),
        ("blue: [", "cannot be read"),
        ("Blue: {}", "tenant 'Blue': a name has lower-case letters"),
        ("../x: {}", "tenant '../x': a name has"),
        ("3: {}", "tenant 3: a name has"),
        ("blue: 4", "tenant 'blue': must be a mapping of users, tokens"),
        ("blue: {memory: 4}", "tenant 'blue': unknown field 'memory'; known are users, tokens"),
        ("blue: {leases: -1}", "leases: -1 cannot be used: must be a whole number from 0 to"),
        ("blue: {predictors: 0}", "predictors: 0 cannot be used: must be 1 or more"),
        ("blue: {leases: 99999999999}", "leases: 99999999999 cannot be used"),
        ("blue: {leased_bytes: 9000PiB}", "leased_bytes: '9000PiB' cannot be used"),
        ("blue: {leases: 1}\nblue: {leases: 2}", "'blue' is there twice, in lines 1 and 2"),
        ("blue: {leases: 1, leases: 2}", "'leases' is there twice, in lines 1 and 1"),
        ("blue: {leases: true}", "leases: True cannot be used"),
        ("blue: {resident_bytes: much}", "resident_bytes: 'much' cannot be used"),
        ("blue: {trust: maybe}", "trust: 'maybe' cannot be used: must be one of"),
        ("blue: {users: 4}", "users: 4 cannot be used: must be a list"),
        ("blue: {users: [no-such-user]}", "there is no user 'no-such-user' on this machine"),
        ("blue: {users: [0]}", "user 0 is the operator"),
        ("blue: {models: 'bert-*'}", r"models: 'bert-\*' cannot be used: must be a list"),
        ("blue: {models: ['']}", "must be names of models"),
        ("blue: {tokens: [secret]}", "a token is given as sha256: and 64 hexadecimal digits"),
        ("blue: {users: [4001]}\nred: {users: [4001]}", "users of 'blue' and 'red' share 4001"),
        ("blue: {users: '*'}\nred: {users: '*'}", r"users of 'blue' and 'red' share '\*'"),
        (f"blue: {{tokens: ['{hash_of(TOKEN)}']}}\nred: {{tokens: ['{hash_of(TOKEN)}']}}", "share a token"),
    ],
)
def test_a_wrong_file_is_refused_with_the_tenant_and_the_field(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_tenants(written(tmp_path, text))


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "blue: {}")
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="may be changed by other users"):
        read_tenants(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tenants can be read from .*none\.yaml"):
        read_tenants(tmp_path / "none.yaml")


def test_a_tenants_own_socket_is_for_its_users_and_the_operator() -> None:
    blue, others = Tenant("blue", users=frozenset({4001})), Tenant("others", users=frozenset({ANY_USER}))
    tenants = Tenants([blue, others, Tenant("empty")])
    for user in (0, os.geteuid(), 4001):
        tenants.check_user(blue, user)
    tenants.check_user(others, 4005)
    for tenant, user in ((blue, 4005), (others, 4001), (tenants.by_name["empty"], 4001)):
        with pytest.raises(PermissionDeniedError, match=f"user {user} is none of tenant '{tenant.name}'"):
            tenants.check_user(tenant, user)


def test_numbers_of_users_may_be_written_as_text(tmp_path: Path) -> None:
    assert read_tenants(written(tmp_path, "blue: {users: ['4001']}")).by_name["blue"].users == {4001}


def test_a_token_that_can_be_guessed_has_no_hash() -> None:
    with pytest.raises(CallerError, match="at least 16 characters"):
        hash_of("secret")


def test_the_daemons_user_is_the_operator_whatever_the_file_says() -> None:
    tenants = Tenants([Tenant("blue", users=frozenset({7}))], operator=7)
    assert tenants.of_user(7) is None


def test_a_tenant_may_open_all_versions_of_its_models() -> None:
    blue = Tenant("blue", models=("m", "bert-*"))
    assert all(map(blue.may_open, ("m", "m@1", "m@stable", "bert-base@2")))
    assert not any(map(blue.may_open, ("other", "other@m", "mm@1", "@m")))


def test_a_changed_file_renews_known_tenants_and_takes_all_from_those_it_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = read_tenants(written(tmp_path, "blue: {users: [4001], leases: 3}\nred: {users: [4002], models: [a]}"))
    now = first.renewed(read_tenants(written(tmp_path, "blue: {users: [4003], models: [b]}\ngreen: {users: [4004]}")))
    assert now.of_user(4003) == Tenant("blue", frozenset({4003}), models=("b",), quota=Quota(leases=3))
    for user in (4001, 4002, 4004):
        with pytest.raises(PermissionDeniedError, match="belongs to no tenant"):
            now.of_user(user)
    assert not now.by_name["red"].may_open("a")
    assert "count once this process has started again: green" in caplog.text
