"""Events: JSON, and CloudEvents in binary and structured mode as their HTTP binding and JSON format have them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trims_client.events import CloudEvent, cloud_event, is_structured, parse_event, response_headers, structured_event

from trims.core.errors import CallerError, NotOfferedError

REQUIRED = [("ce-id", "1"), ("ce-source", "/a"), ("ce-type", "t"), ("ce-specversion", "1.0")]


def test_a_request_without_attributes_is_no_cloud_event() -> None:
    assert cloud_event([("content-type", "application/json"), ("accept", "*/*")], b"") is None


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("", "bytes"), ("text/plain; charset=UTF-8", "text"), ('text/csv;a=b; charset="us-ascii"', "text"),
        ("application/json; charset=latin-1", "json"),
        ("application/json", "json"), ("application/vnd.me+json; charset=utf-8", "json"),
        ("text/json", "json"), ("text/plain", "text"), ("application/xml", "text"), ("image/png", "bytes"),
        ("application/jsonl", "bytes"), ("application/x-www-form-urlencoded", "json"),
    ],
)  # fmt: skip
def test_the_content_type_says_what_the_data_becomes(content_type: str, kind: str) -> None:
    found = cloud_event([*REQUIRED, *([("content-type", content_type)] if content_type else [])], b"1")
    assert found is not None
    assert found.kind == kind
    stated = content_type and "form" not in content_type
    assert found.attributes.get("datacontenttype") == (content_type if stated else None)


def test_values_are_decoded_as_the_binding_writes_them() -> None:
    found = cloud_event([*REQUIRED, ("ce-subject", "Euro %E2%82%AC"), ("ce-note", '"a \\"b\\" %25"')], b"")
    assert found is not None
    assert (found.attributes["subject"], found.attributes["note"]) == ("Euro \u20ac", 'a "b" %')


@pytest.mark.parametrize(
    ("headers", "error", "message"),
    [
        (REQUIRED[1:], CallerError, "no header ce-id"),
        ([("ce-id", ""), *REQUIRED[1:]], CallerError, "no header ce-id"),
        ([("ce-id", " "), *REQUIRED[1:]], CallerError, "no header ce-id"),
        ([("ce-id", '" "'), *REQUIRED[1:]], CallerError, "no header ce-id"),
        (
            [*REQUIRED, ("content-type", "text/plain; charset=latin-1")],
            NotOfferedError,
            "'latin-1'; send text in UTF-8",
        ),
        ([*REQUIRED, ("ce-id", "2")], CallerError, "ce-id twice"),
        ([*REQUIRED, ("ce-a_b", "2")], CallerError, "names no attribute"),
        ([*REQUIRED[:3], ("ce-specversion", "0.3")], NotOfferedError, "ce-specversion '0.3'"),
        ([*REQUIRED, ("ce-data", "1")], CallerError, "names no attribute"),
        ([("content-type", "application/cloudevents+xml")], NotOfferedError, "in binary mode"),
        ([("content-type", "application/cloudevents-batch+json")], NotOfferedError, "in binary mode"),
    ],
)
def test_headers_that_are_no_cloud_event_are_refused(
    headers: list[tuple[str, str]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cloud_event(headers, b"")


#: Content types: as curl states it where its user states none, and one with the charset that text may have.
CURL, UTF_8 = "application/x-www-form-urlencoded", "text/html;charset=utf8"
BINARY: dict[str, Any] = {"id": "1", "source": "/a", "type": "t", "specversion": "1.0"}


def structured(**members: object) -> bytes:
    return json.dumps({**BINARY, **members}).encode()


@pytest.mark.parametrize(
    ("members", "content_type", "body"),
    [
        ({"data": {"a": [1, None]}}, CURL, b'{"a": [1, null]}'),
        ({"data": "a"}, CURL, b'"a"'),
        ({}, "", b""),
        ({"data": None}, "", b""),
        ({"data": "\u20ac", "datacontenttype": "text/plain"}, "text/plain", "\u20ac".encode()),
        ({"datacontenttype": "text/plain"}, "text/plain", b""),
        ({"data": "a\nb", "datacontenttype": "application/jsonl"}, "application/jsonl", b"a\nb"),
        ({"data_base64": "/w==", "datacontenttype": "image/png"}, "image/png", b"\xff"),
        ({"data_base64": "WzFd", "datacontenttype": "application/json"}, "application/json", b"[1]"),
        ({"data_base64": "WzFd"}, "", b"[1]"),
        ({"data_base64": "/w=="}, " ", b"\xff"),
        ({"data_base64": ""}, "", b""),
        ({"data": "\u20ac", "datacontenttype": UTF_8}, UTF_8, "\u20ac".encode()),
    ],
)
def test_structured_and_binary_mode_are_the_same_to_a_handler(
    members: dict[str, Any], content_type: str, body: bytes
) -> None:
    headers = [*REQUIRED, ("ce-n", "7"), ("ce-b", "true"), ("content-type", content_type)]
    in_body = structured(**members, n=7, b=True, subject=None)
    mode = [("content-type", "application/cloudevents+json; charset=utf-8"), ("ce-id", "ignored")]
    one, other = cloud_event(headers, body), cloud_event(mode, in_body)
    assert one is not None
    assert other is not None
    assert one.value() == other.value()
    assert {**BINARY, "n": "7", "b": "true"}.items() <= one.value().items()
    assert CloudEvent.of(*other.elements()).value() == other.value()


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (b"{", CallerError, "no JSON"),
        (b"", CallerError, "in structured mode it is a JSON object"),
        (b"[]", CallerError, "in structured mode it is a JSON object"),
        (structured(id=""), CallerError, "no attribute id"),
        (structured(id=" \t"), CallerError, "no attribute id"),
        (structured(data_base64="/w==", datacontenttype="text/a; charset=x"), NotOfferedError, "charset 'x'"),
        (structured(type=None), CallerError, "no attribute type"),
        (structured(specversion="0.3"), NotOfferedError, "specversion '0.3'"),
        (structured(specversion=1.0), CallerError, "specversion is 1.0"),
        (structured(subject={}), CallerError, "subject is {}"),
        (structured(Subject="a"), CallerError, "'Subject', which names no attribute"),
        (structured(data=1, data_base64="WzFd"), CallerError, "data and data_base64"),
        (structured(data_base64="%%"), CallerError, "no base64"),
        (structured(data_base64=1), CallerError, "data_base64 is 1"),
        (structured(data={}, datacontenttype="image/png"), CallerError, "send text, or data_base64"),
        (structured(data="\ud800", datacontenttype="text/plain"), CallerError, "no text in UTF-8"),
    ],
)
def test_a_body_that_is_no_cloud_event_is_refused(body: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        structured_event(body)


def test_bytes_of_no_stated_type_stay_bytes_in_both_modes() -> None:
    packed = structured_event(structured(data_base64="WzFd"))
    sent = cloud_event(REQUIRED, b"[1]")
    assert sent is not None
    assert packed.value()["data"] == sent.value()["data"] == b"[1]"


def test_one_media_type_is_that_of_structured_mode() -> None:
    types = "application/CloudEvents+JSON", "application/cloudevents-batch+json", "application/json"
    assert [is_structured([("content-type", each)]) for each in types] == [True, False, False]


def test_nothing_is_the_event_none() -> None:
    assert parse_event(b" \n") is None
    assert parse_event(b"0") == 0


@pytest.mark.parametrize("text", [b"NaN", b'{"a": [Infinity]}', b"-Infinity", b"[1e999]", b"-1e999"])
def test_numbers_that_json_has_not_are_no_event(text: bytes) -> None:
    with pytest.raises(CallerError, match="no number that JSON has"):
        parse_event(text)


def test_the_answer_is_an_event_of_its_own_and_its_headers_are_ascii() -> None:
    first, second = (response_headers({"type": "t \u20ac\r\n"}, "f") for _ in range(2))
    assert first["ce-type"] == "t%20%E2%82%AC%0D%0A.response"
    assert first["ce-id"] != second["ce-id"]
    assert first["ce-source"] == "/functions/f"
    assert all(value.isascii() and value.isprintable() for value in first.values())
