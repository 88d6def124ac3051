"""Servers behind real proxies that ask for a user and a password."""

from __future__ import annotations

import os
import ssl
import traceback
from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from certificates import make_certificate
from object_stub import object_stub, read_whole
from proxies import PASSWORD, USER, proxy

from trims.core.errors import ConfigError, SourceRefusedError
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.proxies import Proxy
from trims.sources.http.source import HttpSource
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_stub import Stub

DATA = os.urandom(3 << 20)
CREDENTIALS = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["http", "https"])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: tuple[Path, Path]
) -> Iterator[tuple[str, str]]:
    """Scheme and address of a proxy."""
    secure = request.param == "https"
    with proxy(tmp_path_factory.mktemp("proxy"), certificates[1] if secure else None) as where:
        yield request.param, where


@pytest.fixture(params=["http", "https"])
def server(request: pytest.FixtureRequest, certificates: tuple[Path, Path]) -> Iterator[Stub]:
    tls = None
    if request.param == "https":
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates[1])
    with object_stub(tls) as made:
        made.objects["/m.safetensors"] = DATA
        made.headers["/m.safetensors"] = {"ETag": '"one"'}
        yield made


def source(monkeypatch: pytest.MonkeyPatch, certificates: tuple[Path, Path], named: str) -> HttpSource:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, named)
    tls = ssl.create_default_context(cafile=str(certificates[0]))
    return HttpSource(SourceSettings(Http(HostPolicy().naming("127.0.0.1"), tls=tls), {}))


def test_a_user_and_a_password_are_sent_to_the_proxy(
    proxied: tuple[str, str], server: Stub, certificates: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheme, where = proxied
    made = source(monkeypatch, certificates, f"{scheme}://{CREDENTIALS}{where}")
    with closing(made.open(f"{server.url}/m.safetensors")) as opened:
        assert read_whole(opened, opened.files[0], 1 << 18) == DATA
    assert server.asked
    if server.url.startswith("https:"):  # of a request in plain text the proxy itself passes on what it likes
        assert not [each for each in server.asked if "proxy-authorization" in each.headers]


# fault (sources): a proxy asks for or refuses credentials -> `source_refused` with where to name them
@pytest.mark.parametrize("credentials", ["", "someone:wrong-password@"])
def test_a_proxy_that_refuses_is_named_with_the_remedy(
    credentials: str,
    proxied: tuple[str, str],
    server: Stub,
    certificates: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheme, where = proxied
    made = source(monkeypatch, certificates, f"{scheme}://{credentials}{where}")
    with pytest.raises(SourceRefusedError, match="USER:PASSWORD@HOST:PORT") as caught:
        made.open(f"{server.url}/m.safetensors")
    assert "wrong-password" not in "".join(traceback.format_exception(caught.value))
    assert not server.asked


@pytest.mark.parametrize(
    ("text", "host", "port", "secure"),
    [
        ("http://proxy.lan", "proxy.lan", 80, False),
        ("https://proxy.lan", "proxy.lan", 443, True),
        ("https://user:secret@proxy.lan:8443", "proxy.lan", 8443, True),
        ("proxy.lan:3128", "proxy.lan", 3128, False),
    ],
)
def test_a_proxy_has_the_port_of_its_scheme_unless_it_names_one(text: str, host: str, port: int, secure: bool) -> None:
    found = Proxy.parse(text)
    assert (found.host, found.port, found.secure) == (host, port, secure)
    assert "secret" not in repr(found)


@pytest.mark.parametrize("text", ["socks5://user:secret@proxy.lan:1080", "http://user:secret@proxy.lan:port"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(ConfigError, match="https_proxy") as caught:
        Proxy.parse(text)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
