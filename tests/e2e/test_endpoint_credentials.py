"""Tokens, tenants and certificates of a running endpoint are taken over when their files change, at both doors."""

# fault (endpoint): a token is revoked or its file rewritten -> 401 or UNAUTHENTICATED within seconds; while it is
# broken the last good one counts

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import grpc
import pytest
from certificates import make_certificate
from endpoints import Endpoint
from looking import wait_until
from trims_predictors.endpoint.grpc import inference_pb2 as pb
from trims_predictors.endpoint.grpc import inference_pb2_grpc

from trims.tenants import hash_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trims.daemon.main import Daemon

pytestmark = pytest.mark.usefixtures("forked_starts")
FIRST, SECOND, BLUE, RED = (f"the long token, {name} of them all" for name in ("first", "second", "blue", "red"))


def secret(folder: Path, generation: int, **files: str | bytes) -> None:
    """Switch a volume as Kubernetes does: the files are links through `..data`, which leads to another folder."""
    made = folder / f"..generation-{generation}"
    made.mkdir(parents=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (made / name).write_bytes(data)
        (made / name).chmod(0o600)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..next").symlink_to(made.name)
    (folder / "..next").replace(folder / "..data")


def tenants(*tokens: str) -> str:
    return f"blue:\n  tokens: [{', '.join(hash_of(each) for each in tokens)}]\n"


class Doors:
    """Both doors of an endpoint, as clients with a token and an authority reach them."""

    def __init__(self, endpoint: Endpoint, authority: Path) -> None:
        self.endpoint, self.authority = endpoint, authority

    def refusals(self) -> int:
        """Return how often a file was reported as broken."""
        return sum("cannot be used" in line for line in self.endpoint.said)

    def http(self, token: str, authority: Path | None = None) -> int | str:
        """Return the status; `tls` if the certificate is not that authority's."""
        tls = ssl.create_default_context(cafile=str(authority or self.authority))
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"https://127.0.0.1:{self.endpoint.port}/v2", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60, context=tls) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except urllib.error.URLError as error:
            return "tls" if isinstance(error.reason, ssl.SSLError) else str(error.reason)

    def grpc(self, token: str, authority: Path | None = None) -> str:
        """Return the status of a call's end."""
        trusted = grpc.ssl_channel_credentials((authority or self.authority).read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{self.endpoint.grpc_port}", trusted) as channel:
            stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                stub.ServerMetadata(
                    pb.ServerMetadataRequest(), metadata=[("authorization", f"Bearer {token}")], timeout=60
                )
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"


@pytest.fixture
def volume(folder: Path) -> Path:
    made = folder / "volume"
    authority, server = make_certificate(folder)
    authority.replace(folder / "first.pem")
    secret(made, 1, token=FIRST, tenants=tenants(BLUE), certificate=server.read_bytes(), key=server.read_bytes())
    return made


@pytest.fixture
def doors(folder: Path, serve: Callable[..., Daemon], volume: Path) -> Iterator[Doors]:
    daemon = serve()
    names = {"--token-file": "token", "--tenants": "tenants", "--certificate": "certificate", "--private-key": "key"}
    flags = [text for flag, name in names.items() for text in (flag, str(volume / name))]
    made = Endpoint(daemon.config.runtime_dir, *flags, "--isolation", "process")
    yield Doors(made, folder / "first.pem")
    made.end()


def test_revoked_tokens_are_refused_and_new_ones_taken_at_both_doors(doors: Doors, volume: Path) -> None:
    assert [doors.http(each) for each in (FIRST, SECOND, BLUE, RED)] == [200, 401, 200, 401]
    server = (volume / "key").read_bytes()
    secret(volume, 2, token=SECOND, tenants=tenants(RED), certificate=server, key=server)
    wait_until(lambda: doors.http(SECOND) == 200, "the new token is taken")
    assert [doors.http(each) for each in (FIRST, SECOND, BLUE, RED)] == [401, 200, 401, 200]
    refused, taken = "UNAUTHENTICATED", "OK"
    assert [doors.grpc(each) for each in (FIRST, SECOND, BLUE, RED)] == [refused, taken, refused, taken]
    # What is broken, or would let everybody in, changes nothing.
    for number, broken in enumerate((tenants(RED)[:-9], "blue: {}\nred: {tokens: 1}\n", ""), 3):
        secret(volume, number, token=SECOND, tenants=broken, certificate=server, key=server)
        refusals = number - 2
        wait_until(lambda: doors.refusals() == refusals, "the broken file is reported")  # noqa: B023 - it is called here
        assert [doors.http(each) for each in (SECOND, RED)] == [200, 200]


def test_an_open_stream_of_a_revoked_token_gets_no_further_answer(doors: Doors, volume: Path) -> None:
    trusted = grpc.ssl_channel_credentials(doors.authority.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{doors.endpoint.grpc_port}", trusted) as channel:
        stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)  # type: ignore[no-untyped-call]

        def requests() -> Iterator[pb.ModelInferRequest]:
            yield pb.ModelInferRequest(model_name="unknown")
            wait_until(lambda: doors.http(FIRST) == 401, "the old token is refused")
            yield pb.ModelInferRequest(model_name="unknown")

        answers = stub.ModelStreamInfer(requests(), metadata=[("authorization", f"Bearer {FIRST}")], timeout=120)
        assert "unknown" in next(answers).error_message
        server = (volume / "key").read_bytes()
        secret(volume, 2, token=SECOND, tenants=tenants(BLUE), certificate=server, key=server)
        with pytest.raises(grpc.RpcError) as refused:
            next(answers)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "revoked" in str(refused.value.details())


def test_a_new_certificate_is_served_at_both_doors(doors: Doors, volume: Path, folder: Path) -> None:
    assert (doors.http(FIRST), doors.grpc(FIRST)) == (200, "OK")
    first = (volume / "key").read_bytes()
    authority, server = make_certificate(folder)
    rest = {"token": FIRST, "tenants": tenants(BLUE)}
    secret(volume, 2, **rest, certificate=server.read_bytes(), key=first)  # they do not belong together
    wait_until(
        lambda: any("are no certificate with its key" in line for line in doors.endpoint.said), "the pair is refused"
    )
    assert (doors.http(FIRST), doors.grpc(FIRST)) == (200, "OK")
    secret(volume, 3, **rest, certificate=server.read_bytes(), key=server.read_bytes())
    wait_until(lambda: doors.http(FIRST, authority) == 200, "the new certificate is served")
    assert doors.grpc(FIRST, authority) == "OK"
    assert (doors.http(FIRST), doors.grpc(FIRST)) == ("tls", "UNAVAILABLE")
