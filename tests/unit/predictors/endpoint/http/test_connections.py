"""A real server of uvicorn: clients that stop in the middle or never end are let go, slow ones are not."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from nursing import until
from trims_predictors.endpoint.http import connections
from trims_predictors.endpoint.http.connections import ImpatientProtocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Client = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

#: Events that requests for `/never` got instead of an answer.
GONE: list[str] = []
#: Path -> seconds before its answer: longer than a silence may last, and long enough for what follows to be read.
_WAITS_S = {"/late": 1.0, "/soon": 0.1}
HEAD = b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n"


@pytest.fixture(autouse=True)
def _raise_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_S", "SILENCE_S", "DRAIN_S", "READER_S"):
        monkeypatch.setattr(connections, name, 0.3)
    monkeypatch.setattr(connections, "_AGAIN_S", 0.05)


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body; `/early` and `/last` before it has read it, `/late` a while after, `/never` never."""
    body, last = b"early", scope["path"] == "/last"
    if scope["path"] not in ("/early", "/last"):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
    if scope["path"] == "/never":
        GONE.append((await receive())["type"])
        return
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        GONE.append(gone.result()["type"])
        return
    if scope["path"] == "/parts":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body[:2], "more_body": True})
        await send({"type": "http.response.body", "body": body[2:]})
        return
    if scope["path"] in _WAITS_S:
        await asyncio.sleep(_WAITS_S[scope["path"]])
    if scope["path"] == "/fields":
        body = b",".join(name for name, _ in scope["headers"])
    length = str(len(body)).encode()
    headers = [(b"content-length", length), *([(b"connection", b"close")] if last else [])]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def _served(protocol: type[ImpatientProtocol] = ImpatientProtocol) -> AsyncIterator[Client]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        config = uvicorn.Config(_app, http=protocol, log_level="error", lifespan="off", access_log=False)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
        serving = asyncio.ensure_future(server.serve([sock]))

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(*sock.getsockname())

        yield connect
        server.should_exit = True
        await serving


def _run(work: Callable[[Client], Awaitable[None]], protocol: type[ImpatientProtocol] = ImpatientProtocol) -> None:
    async def run() -> None:
        async with asyncio.timeout(60.0), _served(protocol) as connect:
            await work(connect)

    asyncio.run(run())


async def _slowly(writer: asyncio.StreamWriter, data: bytes) -> None:
    for byte in data:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.2)


def test_a_connection_on_which_nothing_is_sent_is_closed_without_a_word() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        assert await reader.read() == b""
        writer.close()

    _run(work)


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD % b"echo" + b"ab"], ids=["in the head", "in the body"])
def test_a_client_that_stops_in_a_request_is_told_and_let_go(sent: bytes) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(sent)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert answer.endswith(b'{"error":"the rest of the request did not come in time"}')
        writer.close()

    _run(work)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        sending = asyncio.ensure_future(_slowly(writer, HEAD))
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        sending.cancel()
        writer.close()

    _run(work)


def test_a_body_that_comes_slowly_is_waited_for() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD % b"echo")
        await _slowly(writer, b"body")
        assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 ")
        writer.write(HEAD % b"echo" + b"next")
        assert (await reader.readuntil(b"next")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    _run(work)


def test_a_client_that_does_not_read_its_answer_is_let_go() -> None:
    async def work(connect: Client) -> None:
        GONE.clear()
        reader, writer = await connect()
        writer.write(HEAD % b"stream" + b"body")
        await reader.readexactly(1)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: GONE == ["http.disconnect"])
        writer.close()

    _run(work)


@pytest.mark.parametrize(("version", "chunked"), [(b"1.0", False), (b"1.1", True)])
def test_an_answer_without_a_length_ends_a_connection_of_http_1_0(version: bytes, chunked: bool) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(b"POST /parts HTTP/%s\r\nhost: x\r\ncontent-length: 4\r\nconnection: close\r\n\r\nbody" % version)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in head) == chunked
        assert body == (b"2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n" if chunked else b"body")
        writer.close()

    _run(work)


def test_a_client_that_reads_its_answer_slowly_is_served() -> None:
    async def work(connect: Client) -> None:
        GONE.clear()
        reader, writer = await connect()
        writer.write(HEAD % b"stream" + b"body")
        until_s = asyncio.get_running_loop().time() + 1.5  # five times as long as a client may read nothing
        while asyncio.get_running_loop().time() < until_s:
            await reader.readexactly(2 << 20)
            await asyncio.sleep(0.05)
        assert GONE == []
        writer.close()

    _run(work)


def test_an_answer_that_takes_long_is_not_the_client_s_silence() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD % b"late" + b"body" + HEAD[:20])  # and half of the next request
        assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 ")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()

    _run(work)


@pytest.mark.parametrize("path", [b"echo", b"late", b"early"])
@pytest.mark.parametrize("before", [b"", HEAD % b"echo" + b"body"], ids=["alone", "behind another one"])
def test_a_request_is_answered_though_something_follows_that_is_not_http(path: bytes, before: bytes) -> None:
    async def work(connect: Client) -> None:
        for size in (1, 8, 4096):
            reader, writer = await connect()
            writer.write(before + HEAD % path + b"body" + b"\x00" * size)
            answer = await reader.read()
            assert answer.count(b"HTTP/1.1 200 ") == (2 if before else 1)
            assert answer.endswith(b"early" if path == b"early" else b"body")
            writer.close()

    _run(work)


def test_what_follows_a_request_and_is_not_http_is_not_read_until_its_answer() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD % b"late" + b"body\x00")
        for _ in range(4):
            await asyncio.sleep(0.1)
            writer.write(b"\x00" * 4096 + HEAD % b"echo")
        answer = await reader.read()
        assert (answer.count(b"HTTP/1.1"), answer[-4:]) == (1, b"body")
        writer.close()

    _run(work)


def test_a_body_that_is_not_sent_after_an_early_answer_ends_the_connection() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD % b"early" + b"ab")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"408" not in answer
        writer.close()

    _run(work)


CHUNKED = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
KIB = b"a" * 1024


async def _send_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it was refused before it was sent
        writer.write(data)
        await writer.drain()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + KIB * 128,
        HEAD[:-2] + b"x: " + KIB * 128,
        HEAD[:-2] + b"".join(b"x%d: a\r\n" % number for number in range(20_000)),
        CHUNKED + b"0\r\nx: " + KIB * 128,
        CHUNKED + b"0\r\n" + b"".join(b"x%d: a\r\n" % number for number in range(20_000)),
        CHUNKED + b"1;x=" + KIB * 128,
    ],
    ids=["target", "one field", "many fields", "one trailer", "many trailers", "chunk extension"],
)
def test_a_head_or_trailer_that_does_not_end_is_refused(sent: bytes) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        await _send_all(writer, sent)
        answer = await reader.readuntil(b"}")
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert answer.endswith(b'{"error":"the head of the request is larger than 64 KiB"}')
        writer.close()

    _run(work)


def test_heads_below_the_limit_are_taken_however_many_come_on_one_connection() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        for _ in range(3):
            writer.write((HEAD % b"echo")[:-2] + b"x: " + KIB * 60 + b"\r\n\r\nbody")
            assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    _run(work)


def test_a_body_is_longer_than_a_head_may_be() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write((HEAD % b"echo").replace(b": 4", b": 262148") + KIB * 256 + b"body")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert (await reader.readexactly(262148)).endswith(b"abody")
        writer.close()

    _run(work)


def test_what_is_not_http_is_refused_in_json() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(b"hello\r\n\r\n")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(b'{"error":"the request is not HTTP/1.1"}')
        writer.close()

    _run(work)


LONG = {
    "stated": (HEAD.replace(b": 4", b": 999999999999"), KIB),
    "chunked": (CHUNKED.replace(b"/echo", b"/%s"), b"400\r\n" + KIB + b"\r\n"),
}


async def _until_closed(writer: asyncio.StreamWriter, piece: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(piece * 64)
            await writer.drain()


@pytest.mark.parametrize("path", [b"early", b"last"])
@pytest.mark.parametrize("body", LONG)
def test_a_body_that_does_not_end_after_its_answer_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, path: bytes, body: str
) -> None:
    monkeypatch.setattr(connections, "DRAIN_S", 1000.0)

    async def work(connect: Client) -> None:
        head, piece = LONG[body]
        reader, writer = await connect()
        writer.write(head % path)
        assert (await reader.readuntil(b"early")).startswith(b"HTTP/1.1 200 ")
        await _until_closed(writer, piece)
        writer.close()

    _run(work)


def test_a_body_that_goes_on_slowly_after_its_answer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "DRAIN_S", 0.3)
    monkeypatch.setattr(connections, "SILENCE_S", 1000.0)

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(LONG["stated"][0] % b"early")
        await reader.readuntil(b"early")
        sending = asyncio.ensure_future(_slowly(writer, KIB))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        sending.cancel()
        writer.close()

    _run(work)


@pytest.mark.parametrize("path", [b"early", b"last"])
def test_an_answer_before_the_end_of_its_body_reaches_a_client_that_sends_all_first(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    monkeypatch.setattr(connections, "DRAIN_S", 1000.0)

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD.replace(b": 4", b": 1000000") % path)
        for _ in range(10):
            writer.write(bytes(100_000))
            await writer.drain()
        assert (await reader.readuntil(b"early")).startswith(b"HTTP/1.1 200 ")
        if path == b"last":
            assert await reader.read() == b""
        else:
            writer.write(HEAD % b"echo" + b"next")
            assert (await reader.readuntil(b"next")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    _run(work)


def test_one_connection_too_many_is_told_so_and_the_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    async def work(connect: Client) -> None:
        kept = [await connect() for _ in range(2)]
        for reader, writer in kept:  # so that both have been accepted
            writer.write(HEAD % b"echo" + b"body")
            await reader.readuntil(b"body")
        for _ in range(3):
            reader, writer = await connect()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in answer
            assert b"the endpoint has 2 connections" in answer
            assert b"`ulimit -n`" in answer
            writer.close()
        for reader, writer in kept:
            writer.write(HEAD % b"echo" + b"more")
            assert (await reader.readuntil(b"more")).startswith(b"HTTP/1.1 200 ")
        kept.pop()[1].close()
        while True:  # once its end is noticed, the next one is taken
            reader, writer = await connect()
            with contextlib.suppress(ConnectionError):
                writer.write(HEAD % b"echo" + b"body")
                if (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 "):
                    break
            writer.close()
        writer.close()
        kept.pop()[1].close()

    _run(work, ImpatientProtocol.within(most_connections=2, most_drained_bytes=0))
    assert caplog.text.count("a connection is refused: the endpoint has 2 connections") == 1


@pytest.mark.parametrize(("limit", "most"), [(1024, 816), (256, 64), (resource.RLIM_INFINITY, sys.maxsize)])
def test_connections_leave_descriptors_for_predictors(monkeypatch: pytest.MonkeyPatch, limit: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connections.most_connections(18) == most


@pytest.mark.parametrize(
    ("most", "grpc", "http_and_grpc"),
    [(816, True, (612, 204)), (816, False, (816, 0)), (1, True, (1, 1)), (sys.maxsize, True, None)],
)
def test_connections_are_shared_out_between_http_and_grpc(
    most: int, *, grpc: bool, http_and_grpc: tuple[int, int] | None
) -> None:
    found = connections.shares(most, grpc=grpc)
    assert found == (http_and_grpc or (most - (2**31 - 1), 2**31 - 1))


OFFERS = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n",
    b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n",
    b"connection: upgrade\r\nupgrade: foo/2\r\n",
]


def _offering(path: bytes, offer: bytes, body: bytes = b"abcd") -> tuple[bytes, bytes]:
    return b"POST /%s HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n%s\r\n" % (path, offer), body


async def _bodies(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        found.append(await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])))
    return found


@pytest.mark.parametrize("offer", OFFERS, ids=["h2c", "websocket", "unknown"])
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(offer: bytes) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        head, body = _offering(b"echo", offer)
        writer.write(head + body)
        assert await _bodies(reader, 1) == [b"abcd"]
        writer.write(head)
        await asyncio.sleep(0.05)
        writer.write(body)
        assert await _bodies(reader, 1) == [b"abcd"]
        writer.write(head + body + HEAD % b"echo" + b"efgh" + b"GET /echo HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n")
        assert await _bodies(reader, 3) == [b"abcd", b"efgh", b""]
        writer.close()

    _run(work)


def test_thousands_of_offers_in_one_piece_are_answered_one_after_the_other() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        get = b"GET /echo HTTP/1.1\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
        writer.write(HEAD % b"echo" + b"abcd" + get * 3000)
        assert await _bodies(reader, 3001) == [b"abcd", *[b""] * 3000]
        writer.close()

    _run(work)


def test_a_request_to_be_a_tunnel_ends_with_an_answer_or_the_connection() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n")
        assert (await reader.read(9)) in (b"", b"HTTP/1.1 ")
        writer.close()

    _run(work)


async def _until(condition: Callable[[], object]) -> None:
    while not condition():  # the deadline is that of `_run`
        await asyncio.sleep(0.01)


# fault (endpoint): a client closes its sending side -> its answer
@pytest.mark.parametrize("before", [b"", HEAD % b"late" + b"1234"], ids=["alone", "behind another one"])
@pytest.mark.parametrize("path", [b"echo", b"late"])
def test_a_client_that_sends_no_more_after_its_request_gets_its_answer(path: bytes, before: bytes) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(before + HEAD % path + b"body")
        writer.write_eof()
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200 ") == (2 if before else 1)
        assert answer.endswith(b"body")
        writer.close()

    _run(work)


def test_a_client_that_sends_no_more_and_waits_long_is_probed_by_interim_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "PROBES_S", (0.05, 0.1))

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(HEAD % b"late" + b"body")
        writer.write_eof()
        answer = await reader.read()
        probes, _, rest = answer.rpartition(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert probes == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert rest.startswith(b"HTTP/1.1 200 ")
        writer.close()

    _run(work)


def test_a_client_of_http_1_0_that_sends_no_more_gets_its_answer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBES_S", (0.05, 0.1))

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write((HEAD % b"late").replace(b"1.1", b"1.0") + b"body")
        writer.write_eof()
        answer = await reader.read()
        assert (answer[:13], answer.count(b"HTTP/1.1"), answer[-4:]) == (b"HTTP/1.1 200 ", 1, b"body")
        writer.close()

    _run(work)


# fault (endpoint): a client closes its connection -> its request ends; over HTTP/1.0 at its answer
def test_a_client_that_closes_its_connection_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBES_S", (0.05, 0.1, 0.2))
    GONE.clear()

    async def work(connect: Client) -> None:
        _, writer = await connect()
        writer.write(HEAD % b"never" + b"body")
        await writer.drain()
        writer.close()
        await _until(lambda: GONE)

    _run(work)
    assert GONE == ["http.disconnect"]


@pytest.mark.parametrize("sent", [HEAD[:20], HEAD % b"echo" + b"ab"], ids=["in the head", "in the body"])
def test_a_client_that_sends_no_more_in_the_middle_of_a_request_is_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    for name in ("HEAD_S", "SILENCE_S"):
        monkeypatch.setattr(connections, name, 1000.0)

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()

    _run(work)


GET = b"GET %s HTTP/1.1\r\n%s\r\n"
REFUSED_HEADS = {
    "two hosts": (GET % (b"/echo", b"host: x\r\nhost: x\r\n"), b"400", b"2 headers Host"),
    "another host": (GET % (b"http://y/echo", b"host: x\r\n"), b"400", b"names the host"),
    "another port": (GET % (b"http://x:8001/echo", b"host: x:8000\r\n"), b"400", b"names the host"),
    "a user": (GET % (b"http://x@y/echo", b"host: y\r\n"), b"400", b"names the host"),
    "packed on the way": (GET % (b"/echo", b"host: x\r\ntransfer-encoding: gzip, chunked\r\n"), b"501", b"chunked"),
    "chunks in 1.0": (
        (GET % (b"/echo", b"transfer-encoding: chunked\r\n")).replace(b"1.1", b"1.0"), b"400", b"HTTP/1.0",
    ),
    "66 KiB of fields": (GET % (b"/echo", b"host: x\r\n" + b"a: %s\r\n" % KIB * 66), b"431", b"larger than 64 KiB"),
    "66 KiB of target": (GET % (b"/" + KIB * 66, b"host: x\r\n"), b"431", b"larger than 64 KiB"),
    "a little too much": (GET % (b"/" + KIB * 63, b"host: x\r\na: %s\r\n" % KIB), b"431", b"larger than 64 KiB"),
    "257 fields": (GET % (b"/echo", b"host: x\r\n" + b"a: b\r\n" * 256), b"431", b"257 fields"),
}  # fmt: skip


# fault (endpoint): a head with two hosts, no end, or an unknown coding -> 400, 431, 501
@pytest.mark.parametrize("name", REFUSED_HEADS)
def test_a_head_that_http_does_not_allow_is_refused_and_reaches_no_route(name: str) -> None:
    sent, status, words = REFUSED_HEADS[name]

    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(sent)
        answer = await reader.read()
        assert (answer[9:12], answer.count(b"HTTP/1.1 ")) == (status, 1)
        assert words in answer
        writer.close()
        reader, writer = await connect()
        writer.write(HEAD % b"soon" + b"body" + sent)  # behind another request, which is answered
        answer = await reader.read()
        assert (answer[9:12], answer.count(b"HTTP/1.1 "), answer[-4:]) == (b"200", 1, b"body")
        writer.close()

    _run(work)


@pytest.mark.parametrize(
    "sent",
    [
        GET % (b"http://X:80/echo", b"host: x\r\n"),
        GET % (b"http://x:8000/echo?a=b", b"Host: X:8000\r\n"),
        (GET % (b"/echo", b"")).replace(b"1.1", b"1.0"),
        GET % (b"/echo", b"host: x\r\n" + b"a: b\r\n" * 255),
    ],
    ids=["own host", "own host and port", "no host in 1.0", "256 fields"],
)
def test_a_head_that_http_allows_is_taken(sent: bytes) -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(sent)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()

    _run(work)


def test_trailers_do_not_become_headers() -> None:
    async def work(connect: Client) -> None:
        reader, writer = await connect()
        writer.write(CHUNKED.replace(b"/echo", b"/fields") + b"0\r\nx-late: 1\r\n\r\n")
        assert await _bodies(reader, 1) == [b"host,transfer-encoding"]
        writer.close()

    _run(work)
