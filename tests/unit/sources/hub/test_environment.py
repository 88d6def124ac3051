"""Settings of the hub's clients: the same as its own client reads from the same environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_side import real_client

from trims.core.errors import ConfigError
from trims.sources.hub.cache import HubCache
from trims.sources.hub.environment import HubEnvironment

_SETTINGS = (
    "from huggingface_hub import constants as c; from huggingface_hub.utils import get_token\n"
    "found = [c.ENDPOINT, c.HF_HUB_CACHE, c.HF_HUB_OFFLINE, c.HF_HUB_ETAG_TIMEOUT, not c.HF_HUB_DISABLE_SYMLINKS,"
    " c.HF_TOKEN_PATH, get_token() or '']"
)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"HF_HOME": "/data/hf", "HF_TOKEN": " hf_a\n"},
        {"XDG_CACHE_HOME": "/data/caches", "HF_ENDPOINT": "https://hub.example/"},
        {"HF_HUB_CACHE": "~/hub/$HF_ETC/${HF_ETC}/$HF_NONE", "HF_ETC": "x", "HUGGINGFACE_HUB_CACHE": "/old"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        {"HF_HUB_OFFLINE": "on", "HF_HUB_ETAG_TIMEOUT": "3", "HF_HUB_DISABLE_SYMLINKS": "True"},
        {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_ETAG_TIMEOUT": "0"},
        {"TRANSFORMERS_OFFLINE": "YES", "HF_TOKEN_PATH": "~/tokens/hf"},
        {"HF_HUB_OFFLINE": "maybe", "HF_HUB_DISABLE_SYMLINKS": ""},
    ],
    ids=lambda more: " ".join(more) or "none",
)
def test_settings_are_those_of_the_hubs_client(tmp_path: Path, more: dict[str, str]) -> None:
    variables = {"HOME": str(tmp_path), **more}
    for path in (".cache/huggingface/token", "tokens/hf"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(f"hf_of_{Path(path).name}\n")
    read = HubEnvironment.read(variables)
    found = [
        read.endpoint,
        str(read.cache),
        read.offline,
        read.timeout_s,
        read.links,
        str(read.token_path),
        read.token(),
    ]
    assert found == real_client(variables, _SETTINGS)
    assert HubCache.from_environment(variables).folder == read.cache


def test_a_token_is_not_sent_where_the_user_wants_none_sent() -> None:
    assert HubEnvironment.read({"HF_TOKEN": "hf_a", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HOME": "/h"}).token() == ""


def test_no_token_is_shown() -> None:
    assert "hf_secret" not in repr(HubEnvironment.read({"HF_TOKEN": "hf_secret", "HOME": "/h"}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_ENDPOINT", "huggingface.co"),
        ("HF_ENDPOINT", "ftp://hub.example"),
        ("HF_ENDPOINT", "https://"),
        ("HF_ENDPOINT", "https://user:hf_secret@hub.example"),
        ("HF_ENDPOINT", "http://[::1"),
        ("HF_HUB_ETAG_TIMEOUT", "soon"),
        ("HF_HUB_ETAG_TIMEOUT", "-1"),
    ],
)
def test_a_setting_that_is_none_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as raised:
        HubEnvironment.read({name: value, "HOME": "/h"})
    assert "hf_secret" not in str(raised.value)


def test_a_token_that_cannot_be_sent_or_read_is_named_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HF_TOKEN") as raised:
        HubEnvironment.read({"HF_TOKEN": "hf_\u00e4", "HOME": "/h"}).token()
    assert "hf_\u00e4" not in str(raised.value)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        HubEnvironment.read({"HF_TOKEN_PATH": str(tmp_path), "HOME": "/h"}).token()
