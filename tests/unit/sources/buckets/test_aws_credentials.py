"""Credentials of AWS from each of their places."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from awscrt import auth
from awscrt.io import ClientBootstrap

from trims.core.errors import ConfigError, SourceRefusedError
from trims.sources.buckets.aws_credentials import AwsCredentials

if TYPE_CHECKING:
    from pathlib import Path

CREDENTIALS = """[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = secret-of-default

[other]
aws_access_key_id = OTHER
aws_secret_access_key = secret-of-other
aws_session_token = token-of-other
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(CREDENTIALS)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def _library_is_warm() -> None:
    """Make the library's event loop, which it keeps for the life of the process, before anything is counted."""
    ClientBootstrap.get_or_create_static_default()


@pytest.fixture(autouse=True)
def _no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the SDK's chain from the services of the machine that runs the tests, and from its user."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent/aws")


def found(environment: dict[str, str]) -> tuple[str, str, str | None]:
    made = AwsCredentials(environment).for_store()
    return made["access_key_id"], made["secret_access_key"], made.get("token")


def test_keys_of_the_environment_come_before_the_profile(home: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "secret"}
    assert found({**keys, "HOME": str(home)}) == ("KEY", "secret", None)
    assert found({**keys, "AWS_SESSION_TOKEN": "token"}) == ("KEY", "secret", "token")


def test_half_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY"):
        AwsCredentials({"AWS_ACCESS_KEY_ID": "KEY"})


def test_a_profile_is_read_from_the_files_of_the_mapping(home: Path) -> None:
    assert found({"HOME": str(home)}) == ("DEFAULT", "secret-of-default", None)
    assert found({"HOME": str(home), "AWS_PROFILE": "other"}) == ("OTHER", "secret-of-other", "token-of-other")
    elsewhere = {"HOME": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials")}
    assert found({**elsewhere, "AWS_PROFILE": "other"}) == ("OTHER", "secret-of-other", "token-of-other")


def test_a_profile_without_credentials_leaves_the_next_places(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[default]\nregion = eu-west-1\n\n[profile named]\nregion = eu-west-1\n")
    for more in ({}, {"AWS_PROFILE": "named"}):
        with pytest.raises(SourceRefusedError):
            AwsCredentials({"HOME": str(tmp_path), **more}).current()


def test_a_profile_that_is_not_there_is_refused_by_name(home: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        AwsCredentials({"HOME": str(home), "AWS_PROFILE": "absent"})


def test_a_program_of_a_profile_hands_out_credentials(home: Path) -> None:
    says = '{"Version": 1, "AccessKeyId": "PROGRAM", "SecretAccessKey": "s", "Expiration": "2999-01-01T00:00:00Z"}'
    program = home / "program.py"
    program.write_text(f"print({says!r})")
    config = home / ".aws" / "config"
    config.write_text(f"[profile made]\nregion = eu-west-1\ncredential_process = {sys.executable} -I {program}\n")
    made = AwsCredentials({"HOME": str(home), "AWS_PROFILE": "made"})
    assert made.for_store()["access_key_id"] == "PROGRAM"
    assert made.good_for_s() > 3600


def test_a_file_that_is_none_of_profiles_is_refused_without_its_text(home: Path) -> None:
    (home / ".aws" / "credentials").write_text("aws_secret_access_key = secret-of-nothing\n")
    with pytest.raises(ConfigError) as caught:
        AwsCredentials({"HOME": str(home)})
    assert "secret-of-nothing" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_credentials_that_are_nowhere_are_refused_with_the_places() -> None:
    with pytest.raises(SourceRefusedError, match=r"AWS_ACCESS_KEY_ID.*AWS_SKIP_SIGNATURE"):
        AwsCredentials({"HOME": "/nonexistent"}).current()


def test_credentials_are_asked_for_again_before_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [timedelta(minutes=4), timedelta(hours=1), timedelta(hours=2)]
    asked: list[auth.AwsCredentials] = []

    def ask() -> auth.AwsCredentials:
        end = datetime.now(timezone.utc) + ends[len(asked)]
        asked.append(auth.AwsCredentials("KEY", "secret", "token", end))
        return asked[-1]

    made = AwsCredentials({"HOME": "/nonexistent"})
    monkeypatch.setattr(made, "_make_provider", lambda: auth.AwsCredentialsProvider.new_delegate(ask))
    assert made.good_for_s() < 241
    assert 3500 < made.good_for_s() <= 3600
    made.current()
    assert len(asked) == 2
