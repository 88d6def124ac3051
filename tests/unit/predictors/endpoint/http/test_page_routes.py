"""The web page's routes: its files with their headers, its state, its orders; the service behind is a stand-in."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from asgi import Reply, call
from trims_predictors.endpoint.http.app import build_app
from trims_predictors.endpoint.http.page_routes import FILES, read_files

from trims.core.errors import ArtifactNotFoundError, InUseError


class StandIn:
    pool = SimpleNamespace(report=dict)

    def __init__(self) -> None:
        self.did: list[tuple[Any, ...]] = []
        self.overview = SimpleNamespace(page=self.page)
        self.repository = self

    async def page(self, report: Any) -> bytes:
        return b'{"models":[]}'

    async def bring(self, model: str, place: str | None) -> Any:
        self.did.append(("load", model, place))
        return SimpleNamespace(place="cpu", nbytes=7)

    async def add(self, path: str, *, name: str | None, task: str | None) -> Any:
        self.did.append(("add", path, name, task))
        if path == "/nowhere":
            raise ArtifactNotFoundError("/nowhere does not exist")
        kind = "safetensors" if path.endswith(".safetensors") else "transformers"
        manifest = {"name": "bert", "artifact": {"path": path}}
        return SimpleNamespace(name="bert", version="1", format=kind, manifest=manifest, origin="", files=())

    async def pin(self, model: str, place: str, *, pinned: bool) -> None:
        self.did.append(("pin" if pinned else "unpin", model, place))

    async def evict(self, model: str, place: str) -> Any:
        self.did.append(("evict", model, place))
        if place == "disk":
            raise InUseError("the replica at disk is pinned; unpin it first")
        return SimpleNamespace(freed=("cpu",), draining=())


def ask(method: str, path: str, body: object = b"", token: str | None = None, **given: Any) -> Reply:
    async def run() -> Reply:
        service = given.pop("service", None) or StandIn()
        app = build_app(service, most_body_bytes=10_000, token=token, loopback=True)
        return await call(app, method, path, body, **given)

    return asyncio.run(run())


def test_the_page_and_its_files_need_no_token_and_all_else_of_it_does() -> None:
    assert ask("GET", "/", token="secret").status == 200
    for name in read_files():
        assert ask("GET", FILES + name, token="secret").status == 200
    assert ask("GET", "/ui/state", token="secret").status == 401
    assert ask("GET", "/ui/state", token="secret", authorization="Bearer secret").json() == {"models": []}
    for order in ("load", "pin", "unpin", "evict"):
        assert ask("POST", f"/ui/models/m/{order}", {}, token="secret").status == 401


def test_every_file_that_the_page_names_is_there_and_has_its_type() -> None:
    files = read_files()
    named = {name for raw in files.values() for name in re.findall(r'(?:ui/files|from "\.)/([\w.]+)', raw.decode())}
    assert named
    assert named <= set(files)
    for name, kind in (("page.css", "text/css"), ("app.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        assert ask("GET", FILES + name).headers["content-type"].startswith(kind)


def test_the_page_may_load_from_the_endpoint_only_and_stands_in_no_frame() -> None:
    policy = ask("GET", "/").headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert ask("GET", "/").headers["x-content-type-options"] == "nosniff"


def test_the_files_name_no_other_site_and_make_no_markup_from_data() -> None:
    for name, raw in read_files().items():
        text = raw.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\bstyle=|\bon\w+=\"", text
        ), name


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fpage_routes.py", "__init__.py"])
def test_a_file_that_the_page_does_not_have_is_not_there(name: str) -> None:
    reply = ask("GET", FILES + name)
    assert (reply.status, list(reply.json())) == (404, ["error"])


def test_orders_are_carried_out_at_the_place_that_is_named() -> None:
    service = StandIn()
    assert ask("POST", "/ui/models/m/load", {"place": "gpu:0"}, service=service).json() == {"place": "cpu", "bytes": 7}
    assert ask("POST", "/ui/models/m/load", service=service).status == 200
    assert ask("POST", "/ui/models/m/pin", {"place": "disk"}, service=service).json() == {}
    assert ask("POST", "/ui/models/m/unpin", {"place": None}, service=service).json() == {}
    assert ask("POST", "/ui/models/m/evict", {"place": "cpu"}, service=service).json() == {
        "freed": ["cpu"],
        "draining": [],
    }
    assert service.did == [
        ("load", "m", "gpu:0"), ("load", "m", None), ("pin", "m", "disk"), ("unpin", "m", "cpu"), ("evict", "m", "cpu")
    ]  # fmt: skip


def test_errors_of_orders_have_the_form_of_the_endpoint() -> None:
    reply = ask("POST", "/ui/models/m/evict", {"place": "disk"})
    assert (reply.status, reply.json()) == (409, {"error": "the replica at disk is pinned; unpin it first"})
    for wrong in ({"place": 1}, [], b"{"):
        assert ask("POST", "/ui/models/m/pin", wrong).status == 400


@pytest.mark.parametrize("order", ["load", "pin", "unpin", "evict"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:1"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_orders_of_pages_of_other_sites_are_refused(order: str, headers: dict[str, str]) -> None:
    service = StandIn()
    assert ask("POST", f"/ui/models/m/{order}", {}, service=service, **headers).status == 403
    assert service.did == []


def test_a_link_on_another_site_may_lead_to_the_page() -> None:
    assert ask("GET", "/", sec_fetch_site="cross-site").status == 200
    assert (
        ask("POST", "/ui/models/m/pin", {}, sec_fetch_site="same-origin", origin="http://localhost:8000").status == 200
    )


def test_a_folder_is_added_by_who_brings_the_token() -> None:
    service = StandIn()
    given = {"path": "/models/bert", "task": "fill-mask"}
    reply = ask("POST", "/ui/models", given, token="secret", authorization="Bearer secret", service=service)
    assert reply.status == 201
    assert reply.json() == {"name": "bert", "version": "1", "format": "transformers", "note": ""}
    assert service.did == [("add", "/models/bert", None, "fill-mask")]


def test_tensors_that_nothing_runs_are_added_with_a_note() -> None:
    given = {"path": "/models/bert.safetensors"}
    reply = ask("POST", "/ui/models", given, token="secret", authorization="Bearer secret")
    assert (reply.status, "nothing says what runs 'bert'" in reply.json()["note"]) == (201, True)


def test_an_endpoint_without_a_token_adds_no_model_and_names_the_remedy() -> None:
    service = StandIn()
    reply = ask("POST", "/ui/models", {"path": "/models/bert"}, service=service)
    assert (reply.status, "--token-file" in reply.json()["error"], service.did) == (403, True, [])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "path"),
        ({"path": "models/bert"}, "models/bert"),
        ({"path": "hf://org/bert"}, "hf://org/bert"),
        ({"path": 3}, "path"),
        ({"path": "/models/\0"}, "models"),
        ({"path": "/models/m", "name": ""}, "name"),
        ({"path": "/models/m", "task": None}, "task"),
        ({"path": "/models/m", "trust_remote_code": True}, "trust_remote_code"),
        ({"path": "/models/m.yaml"}, "trims add"),
        ({"path": "/models/m.yaml/"}, "trims add"),
        ({"path": "/models/m.yaml/."}, "trims add"),
        ({"path": "/models/m.yml//./"}, "trims add"),
        ({"path": "/models/handler.py/"}, "trims add"),
        ({"path": "/models/handler.py"}, "trims add"),
    ],
)
def test_what_is_no_path_of_a_model_is_refused(given: dict[str, Any], named: str) -> None:
    service = StandIn()
    reply = ask("POST", "/ui/models", given, token="secret", authorization="Bearer secret", service=service)
    assert (reply.status, named in reply.json()["error"], service.did) == (400, True, [])


def test_what_lies_at_a_path_is_the_callers_mistake() -> None:
    reply = ask("POST", "/ui/models", {"path": "/nowhere"}, token="secret", authorization="Bearer secret")
    assert (reply.status, reply.json()) == (400, {"error": "/nowhere does not exist"})
