"""A stand-in for the Hugging Face hub that speaks its real API over HTTP, for trims and for the hub's own client.

    with stub_hub() as hub:
        commit = hub.add("org/model", {"config.json": b"{}", "model.safetensors": weights})
        os.environ["HF_ENDPOINT"] = hub.url

Two servers on two ports: the hub, and the delivery network that it redirects to for large files, with a signature that
ends. What goes wrong is set in `hub.faults`; what was asked for is in `hub.requests`, `hub.sent` and `hub.cdn_tokens`.
As a program of its own (`apart`), so that a hub outlives the process that is killed: a folder `org/name/...`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import hmac
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHUNK_BYTES = 64 << 10
#: Endings of the files that the hub keeps in large-file storage.
_LARGE = (".safetensors", ".bin", ".onnx", ".onnx_data", ".gguf", ".h5", ".msgpack", ".pt", ".model")


@dataclass
class Faults:
    """What goes wrong from now on. Each field may be set at any time.

    Attributes:
        bytes_per_s: Bandwidth of each answer that holds a file; 0 without a limit.
        break_after: Bytes of a file after which an answer breaks off; None for none.
        breaks: Answers that break off, counted down; negative for all.
        stall_after: Bytes of a file after which an answer stops, until the hub is closed or `stall_after` is None.
        status: Answered instead, to the next `failures` requests.
        failures: Counted down.
        at: Servers that fail: `hub`, `cdn`, or both if empty.
        retry_after: Header of such an answer; empty for none.
        silences: Requests that get no answer until the hub is closed, counted down.
    """

    bytes_per_s: float = 0.0
    break_after: int | None = None
    breaks: int = -1
    stall_after: int | None = None
    status: int = 500
    failures: int = 0
    at: str = ""
    retry_after: str = ""
    silences: int = 0


@dataclass(frozen=True)
class Request:
    """A request as it came.

    Attributes:
        at: `hub` or `cdn`.
        path: Without the query.
    """

    at: str
    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class Content:
    """Bytes of a file of a repository, in memory or in a file."""

    source: bytes | Path
    large: bool

    @property
    def nbytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        if isinstance(self.source, bytes):
            for at in range(begin, end, _CHUNK_BYTES):
                yield self.source[at : min(at + _CHUNK_BYTES, end)]
            return
        with self.source.open("rb") as file:
            file.seek(begin)
            while begin < end and (data := file.read(min(_CHUNK_BYTES, end - begin))):
                begin += len(data)
                yield data

    def _hash(self, made: Any) -> str:
        for chunk in self.chunks(0, self.nbytes):
            made.update(chunk)
        return str(made.hexdigest())

    @cached_property
    def sha256(self) -> str:
        return self._hash(hashlib.sha256())

    @cached_property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.nbytes}\n".encode()

    @cached_property
    def blob_id(self) -> str:
        if self.large:
            return Content(self.pointer, large=False).blob_id
        return self._hash(hashlib.sha1(b"blob %d\0" % self.nbytes))

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.blob_id

    def row(self, path: str) -> dict[str, Any]:
        """The file in a listing."""
        row = {"type": "file", "path": path, "size": self.nbytes, "oid": self.blob_id}
        if self.large:
            stored = {"oid": self.sha256, "size": self.nbytes, "pointerSize": len(self.pointer)}
            row |= {"lfs": stored, "xetHash": hashlib.sha256(self.sha256.encode()).hexdigest()}
        return row


@dataclass
class Repository:
    """A model of the hub.

    Attributes:
        commits: Files of each commit.
        refs: Commits of branches and tags.
        private: Only tokens see that it is there.
        gated: Only tokens of `readers` may read files; anyone sees that it is there.
    """

    name: str
    commits: dict[str, dict[str, Content]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


class StubHub:
    """Serves until it is closed.

    Args:
        page_files: Files on a page of a listing.
        signed_for_s: Seconds for which an address of the delivery network is good.
    """

    def __init__(self, *, page_files: int = 1000, signed_for_s: int = 3600) -> None:
        self.page_files, self.signed_for_s = page_files, signed_for_s
        self.repositories: dict[str, Repository] = {}
        #: Tokens that the hub knows.
        self.tokens = {"hf_known"}
        self.faults = Faults()
        self.requests: list[Request] = []
        #: Bytes of each file that were sent, by its path in the repository.
        self.sent: Counter[str] = Counter()
        #: Credentials that came to the delivery network, where none must.
        self.cdn_tokens: list[str] = []
        #: Errors of the stub itself.
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self._secret = 0
        self._blobs: dict[str, tuple[str, Content]] = {}
        self._servers = [_Server(self, "hub"), _Server(self, "cdn")]
        self.url, self.cdn_url = (server.url for server in self._servers)

    def close(self) -> None:
        """Stop, and break off what is under way. Idempotent."""
        self.closing.set()
        for server in self._servers:
            server.stop()

    def add(self, name: str, files: Mapping[str, bytes] | Path, revision: str = "main", **about: Any) -> str:
        """Commit files to a branch or a tag of a repository, which may be there. Return the commit.

        Args:
            name: `org/name`.
            files: By path, or a folder.
            revision: Has this commit from now on.
            about: Other fields of `Repository`.
        """
        if isinstance(files, Path):
            paths = sorted(path for path in files.rglob("*") if path.is_file())
            sources: dict[str, bytes | Path] = {path.relative_to(files).as_posix(): path for path in paths}
        else:
            sources = dict(files)
        contents = {path: Content(source, path.endswith(_LARGE)) for path, source in sorted(sources.items())}
        repository = self.repositories.setdefault(name, Repository(name))
        for key, value in about.items():
            setattr(repository, key, value)
        text = json.dumps([name, len(repository.commits), [each.row(path) for path, each in contents.items()]])
        commit = hashlib.sha1(text.encode()).hexdigest()
        repository.commits[commit] = contents
        repository.refs[revision] = commit
        self._blobs |= {each.sha256: (path, each) for path, each in contents.items() if each.large}
        return commit

    def asked(self, part: str = "") -> list[Request]:
        """The requests whose path has this part."""
        with self.lock:
            return [request for request in self.requests if part in request.path]

    def expire_signatures(self) -> None:
        """Have the delivery network refuse every address that the hub has given out so far."""
        with self.lock:
            self._secret += 1

    def signed(self, content: Content) -> str:
        """An address of the delivery network."""
        ends = int(time.time()) + self.signed_for_s
        signature = self._signature(content.sha256, str(ends))
        return f"{self.cdn_url}/repos/{content.sha256}?Expires={ends}&Signature={signature}&Key-Pair-Id=K1"

    def delivered(self, path: str, query: Mapping[str, list[str]]) -> tuple[str, Content] | None:
        """The file of an address; None if its signature is wrong or has ended."""
        sha256 = path.rpartition("/")[2]
        ends, signature = query.get("Expires", [""])[0], query.get("Signature", [""])[0]
        good = hmac.compare_digest(self._signature(sha256, ends), signature) and int(ends) >= time.time()
        return self._blobs.get(sha256) if good else None

    def state(self) -> dict[str, Any]:
        """Counters, for another process."""
        with self.lock:
            return {"requests": len(self.requests), "sent": dict(self.sent), "cdn_tokens": list(self.cdn_tokens)}

    def _signature(self, sha256: str, ends: str) -> str:
        return hmac.new(b"%d" % self._secret, f"{sha256}{ends}".encode(), "sha256").hexdigest()


@contextlib.contextmanager
def stub_hub(**settings: int) -> Iterator[StubHub]:
    """A hub for a block, which fails if the stub itself had an error."""
    hub = StubHub(**settings)
    try:
        yield hub
    finally:
        hub.close()
    assert hub.errors == []


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, hub: StubHub, at: str) -> None:
        super().__init__(("127.0.0.1", 0), _Hub if at == "hub" else _Cdn)
        self.hub, self.at = hub, at
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, name=f"stub-{at}")
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError):  # a client that goes away is none
            self.hub.errors.append(error)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self.shutdown()
        self._thread.join()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """What both servers do: count, fail, and send files by ranges."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        hub = self.server.hub
        parts = urlsplit(self.path)
        if parts.path == "/stub/state":
            self.send_json(hub.state())
            return
        with hub.lock:
            hub.requests.append(Request(self.server.at, self.command, unquote(parts.path), dict(self.headers)))
            faults = hub.faults
            fails = faults.failures > 0 and faults.at in ("", self.server.at)
            faults.failures -= fails
            silent = faults.silences > 0
            faults.silences -= silent
        if silent:
            hub.closing.wait()
            self.close_connection = True
        elif fails:
            self.send_whole(faults.status, b"", {"Retry-After": faults.retry_after} if faults.retry_after else {})
        else:
            self.answer(parts.path, parse_qs(parts.query))

    do_HEAD = do_GET  # noqa: N815 - as http.server wants it

    def do_POST(self) -> None:
        """Set faults, from another process."""
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert set(wanted) <= {each.name for each in fields(Faults)}
        self.server.hub.faults = Faults(**wanted)
        self.send_json(asdict(self.server.hub.faults))

    def answer(self, path: str, query: dict[str, list[str]]) -> None:
        raise NotImplementedError

    def send_json(self, value: object, headers: Mapping[str, str] | None = None) -> None:
        self.send_whole(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send_whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, path: str, content: Content, headers: Mapping[str, str]) -> None:
        begin, end, status = 0, content.nbytes, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is not None:
            begin, end, status = int(asked[1]), min(end, int(asked[2] or end) + 1), 206
            if begin >= content.nbytes:
                self.send_whole(416, b"", {"Content-Range": f"bytes */{content.nbytes}"})
                return
        self.send_response(status)
        for name, value in {**headers, "Accept-Ranges": "bytes", "Content-Length": str(end - begin)}.items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{content.nbytes}")
        self.end_headers()
        if self.command != "HEAD":
            self._send_chunks(path, content.chunks(begin, end))

    def _send_chunks(self, path: str, chunks: Iterator[bytes]) -> None:
        hub, done = self.server.hub, 0
        stops_at = self._break_after()
        for chunk in chunks:
            faults = hub.faults
            if faults.stall_after is not None and done >= faults.stall_after:
                while hub.faults.stall_after is not None and not hub.closing.wait(0.005):
                    pass
            data = chunk if stops_at is None else chunk[: max(0, stops_at - done)]
            done += len(data)
            with hub.lock:  # before they go: who has them all finds them all counted
                hub.sent[path] += len(data)
            self.wfile.write(data)
            if len(data) < len(chunk) or hub.closing.is_set():
                self.close_connection = True
                return
            if faults.bytes_per_s:
                hub.closing.wait(len(data) / faults.bytes_per_s)

    def _break_after(self) -> int | None:
        hub = self.server.hub
        with hub.lock:
            if hub.faults.break_after is None or hub.faults.breaks == 0:
                return None
            hub.faults.breaks -= 1
            return hub.faults.break_after

    def log_message(self, *given: object) -> None:
        """Log nothing."""


class _Hub(_Handler):
    """The hub's API, and its addresses of files."""

    _INFO = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(?P<revision>[^/]+))?")
    _TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/(?P<revision>[^/]+)")
    _RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
    _CACHED = re.compile(r"/api/resolve-cache/models/([^/]+/[^/]+)/(?P<revision>[^/]+)/(?P<path>.+)")

    def answer(self, path: str, query: dict[str, list[str]]) -> None:
        ways = ((self._CACHED, self._file), (self._TREE, self._tree), (self._INFO, self._info))
        for pattern, answer in (*ways, (self._RESOLVE, self._resolve)):
            found = pattern.fullmatch(path)
            if found is None:
                continue
            repository = self._repository(found[1])
            if repository is not None:
                commit = repository.commit(unquote(found["revision"] or "main"))
                if commit is None:
                    self._refuse(404, "RevisionNotFound", f"Invalid rev id: {found['revision']}")
                else:
                    answer(repository, commit, {**query, "path": [unquote(found.groupdict().get("path") or "")]})
            return
        self._refuse(404, "", "Not Found")

    def _repository(self, name: str) -> Repository | None:
        """The repository, if there is one that the token may see; else the answer is sent."""
        token = self._token()
        if token and token not in self.server.hub.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
            return None
        found = self.server.hub.repositories.get(name)
        if found is None or (found.private and not token):
            self._refuse(
                404 if token else 401,
                "RepoNotFound",
                "Repository not found" if token else "Invalid username or password.",
            )
            return None
        return found

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _info(self, repository: Repository, commit: str, query: dict[str, list[str]]) -> None:
        info: dict[str, Any] = {"_id": commit[:24], "id": repository.name, "sha": commit}
        if "expand" not in query:
            files = [{"rfilename": path} for path in repository.commits[commit]]
            info |= {"private": repository.private, "gated": repository.gated and "auto", "tags": [], "siblings": files}
        self.send_json(info)

    def _tree(self, repository: Repository, commit: str, query: dict[str, list[str]]) -> None:
        rows = [content.row(path) for path, content in repository.commits[commit].items()]
        folders = {path.rpartition("/")[0] for path in repository.commits[commit]} - {""}
        rows += [{"type": "directory", "path": each, "size": 0, "oid": commit} for each in sorted(folders)]
        begin = int(query.get("cursor", ["0"])[0])
        end = begin + self.server.hub.page_files
        onward = f"{self.server.url}/api/models/{repository.name}/tree/{commit}?recursive=true&cursor={end}"
        self.send_json(rows[begin:end], {"Link": f'<{onward}>; rel="next"'} if end < len(rows) else {})

    def _resolve(self, repository: Repository, commit: str, query: dict[str, list[str]]) -> None:
        (path,) = query["path"]
        content = repository.commits[commit].get(path)
        if repository.gated and self._token() not in repository.readers:
            said = f"Access to model {repository.name} is restricted. You must have access to it."
            self._refuse(403 if self._token() else 401, "GatedRepo", said)
            return
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
            return
        headers = {"X-Repo-Commit": commit, "X-Linked-Etag": f'"{content.etag}"', "X-Linked-Size": str(content.nbytes)}
        if content.large:
            self.send_whole(302, b"", {**headers, "Location": self.server.hub.signed(content)})
        else:
            onward = f"/api/resolve-cache/models/{repository.name}/{commit}/{quote(path)}"
            self.send_whole(307, b"", {"X-Repo-Commit": commit, "Location": onward})

    def _file(self, repository: Repository, commit: str, query: dict[str, list[str]]) -> None:
        (path,) = query["path"]
        content = repository.commits[commit][path]
        self.send_file(path, content, {"X-Repo-Commit": commit, "ETag": f'"{content.etag}"'})

    def _refuse(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        said = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}
        self.send_whole(status, json.dumps({"error": message}).encode(), {"Content-Type": "application/json", **said})


class _Cdn(_Handler):
    """The delivery network: signed addresses, and an ETag of its own."""

    def answer(self, path: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        if self.headers.get("Authorization"):
            with hub.lock:
                hub.cdn_tokens.append(self.headers["Authorization"])
        found = hub.delivered(path, query)
        if found is None:
            self.send_whole(403, b"<Error><Code>AccessDenied</Code></Error>", {"Content-Type": "application/xml"})
            return
        name, content = found
        etag = hashlib.md5(content.sha256.encode()).hexdigest()
        self.send_file(name, content, {"ETag": f'"{etag}"'})


@dataclass(frozen=True)
class Apart:
    """A hub in a process of its own."""

    url: str

    def state(self) -> dict[str, Any]:
        """See `StubHub.state`."""
        with urllib.request.urlopen(f"{self.url}/stub/state") as answer:
            return cast("dict[str, Any]", json.load(answer))

    def set_faults(self, **wanted: Any) -> None:
        """See `Faults`; fields that are not named have their default."""
        with urllib.request.urlopen(f"{self.url}/stub/faults", json.dumps(wanted).encode()):
            pass


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[Apart]:
    """Serve the models `org/name` of a folder from a process of its own."""
    program = subprocess.Popen(
        [sys.executable, str(Path(__file__)), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with program:
        assert program.stdout is not None
        yield Apart(json.loads(program.stdout.readline())["url"])
        program.communicate()  # its input ends, and so does the program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder org/name for each model")
    with stub_hub() as hub:
        for each in sorted(parser.parse_args().folder.glob("*/*/")):
            hub.add("/".join(each.parts[-2:]), each)
        sys.stdout.write(json.dumps({"url": hub.url, "cdn": hub.cdn_url}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
