"""Credentials of servers: where they come from, to whom they go, and that no error shows one."""

from __future__ import annotations

import base64
import ssl
import traceback
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from certificates import make_certificate
from object_stub import object_stub, read_whole

from trims.core.errors import ConfigError, SourceRefusedError
from trims.sources.http.client import Http
from trims.sources.http.hosts import HostPolicy
from trims.sources.http.source import HostCredentials, HttpSource
from trims.sources.settings import SourceSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from object_stub import Stub

DATA = b"weights of a model"
SECRET = "made-up" + "-secret"  # in two, as a trace that is looked through has the lines of this file


_clients: list[Http] = []


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(certificates: tuple[Path, Path]) -> Iterator[Stub]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates[1])
    with object_stub(tls) as made:
        made.objects["/m.bin"] = DATA
        yield made


def source(certificates: tuple[Path, Path], headers: str = "", **environment: str) -> HttpSource:
    tls = ssl.create_default_context(cafile=str(certificates[0]))
    http = Http(HostPolicy().naming("127.0.0.1"), tls=tls)
    _clients.append(http)
    return HttpSource(SourceSettings(http, environment, headers))


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def sent(server: Stub) -> set[str]:
    return {each.headers.get("authorization", "") for each in server.asked}


@pytest.mark.parametrize("where", ["NETRC", "HOME"])
def test_a_user_of_a_netrc_file_is_sent_with_every_request(
    where: str, server: Stub, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    path = written(tmp_path / ".netrc", f"machine 127.0.0.1\nlogin someone\npassword {SECRET}\n")
    environment = {where: path if where == "NETRC" else str(tmp_path)}
    with closing(source(certificates, **environment).open(f"{server.url}/m.bin")) as opened:
        assert read_whole(opened, opened.files[0]) == DATA
    assert sent(server) == {f"Basic {base64.b64encode(f'someone:{SECRET}'.encode()).decode()}"}


def test_headers_of_the_operators_file_go_to_their_host_alone(
    server: Stub, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    port = server.url.rpartition(":")[2]
    text = f"# of ours\nother.example Authorization: Bearer no\n127.0.0.1:{port} Authorization: Bearer {SECRET}\n"
    made = source(certificates, written(tmp_path / "headers", text), HOME=str(tmp_path))
    with closing(made.open(f"{server.url}/m.bin")) as opened:
        assert read_whole(opened, opened.files[0]) == DATA
    assert sent(server) == {f"Bearer {SECRET}"}


def test_a_token_that_is_renewed_counts_at_the_next_look(
    server: Stub, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    made = source(certificates, written(tmp_path / "headers", "127.0.0.1 Authorization: Bearer one\n"))
    made.open(f"{server.url}/m.bin")
    written(tmp_path / "headers", "127.0.0.1 Authorization: Bearer two\n")
    made.open(f"{server.url}/m.bin").close()
    assert sent(server) == {"Bearer one", "Bearer two"}


def test_no_credentials_go_to_another_host_nor_in_plain_text(tmp_path: Path) -> None:
    text = f"host.example Authorization: Bearer {SECRET}\n"
    credentials = HostCredentials(written(tmp_path / "headers", text), {})
    assert credentials.of("https://host.example/m.bin")
    assert not credentials.of("http://host.example/m.bin")
    assert not credentials.of("https://host.example.org/m.bin")
    assert not credentials.of("https://host.example@other.org/m.bin")
    assert SECRET not in repr(credentials)


def test_credentials_do_not_follow_a_redirect_to_another_server(
    server: Stub, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates[1])
    with object_stub(tls) as other:
        other.objects["/m.bin"] = DATA
        server.answers += [(302, {"Location": f"{other.url}/m.bin"}, b"")] * 2
        made = source(certificates, written(tmp_path / "headers", f"127.0.0.1 Authorization: Bearer {SECRET}\n"))
        with closing(made.open(f"{server.url}/m.bin")) as opened:
            assert read_whole(opened, opened.files[0]) == DATA
        assert sent(other) == {""}
    assert sent(server) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_where_credentials_can_be_put(
    status: int, server: Stub, certificates: tuple[Path, Path], tmp_path: Path
) -> None:
    server.answers += [(status, {}, b"")]
    made = source(certificates, written(tmp_path / "headers", f"127.0.0.1 Authorization: Bearer {SECRET}\n"))
    with pytest.raises(SourceRefusedError, match=r"(?s)fetch_headers.*NETRC.*~/.netrc") as caught:
        made.open(f"{server.url}/m.bin")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("text", [f"127.0.0.1 {SECRET}\n", f"Authorization: {SECRET}\n"])
def test_a_line_that_is_none_is_named_without_what_it_says(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 1 of .*HOST NAME: VALUE") as caught:
        HostCredentials(written(tmp_path / "headers", text), {}).of("https://127.0.0.1/m")
    assert SECRET not in str(caught.value)


def test_a_netrc_file_that_cannot_be_understood_is_named_without_what_it_says(tmp_path: Path) -> None:
    path = written(tmp_path / "netrc", f"machine h login x password y {SECRET}\n")
    with pytest.raises(ConfigError, match=r"line \d of .*netrc") as caught:
        HostCredentials("", {"NETRC": path}).of("https://h/m")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headers"
    path.write_text("h Authorization: Bearer one\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        HostCredentials(str(path), {}).of("https://h/m")
