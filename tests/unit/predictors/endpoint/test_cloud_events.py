"""CloudEvents in binary mode, as their HTTP binding has them."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.cloud_events import cloud_event, response_headers

from trims.core.errors import CallerError, NotOfferedError

REQUIRED = [("ce-id", "1"), ("ce-source", "/a"), ("ce-type", "t"), ("ce-specversion", "1.0")]


def test_a_request_without_attributes_is_no_cloud_event() -> None:
    assert cloud_event([("content-type", "application/json"), ("accept", "*/*")]) is None


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("", "json"), ("application/json", "json"), ("application/vnd.me+json; charset=utf-8", "json"),
        ("text/json", "json"), ("text/plain", "text"), ("application/xml", "text"), ("image/png", "bytes"),
        ("application/jsonl", "bytes"), ("application/x-www-form-urlencoded", "json"),
    ],
)  # fmt: skip
def test_the_content_type_says_what_the_data_becomes(content_type: str, kind: str) -> None:
    found = cloud_event([*REQUIRED, *([("content-type", content_type)] if content_type else [])])
    assert found is not None
    assert found.kind == kind
    stated = content_type and "form" not in content_type
    assert found.attributes.get("datacontenttype") == (content_type if stated else None)


def test_values_are_decoded_as_the_binding_writes_them() -> None:
    found = cloud_event([*REQUIRED, ("ce-subject", "Euro %E2%82%AC"), ("ce-note", '"a \\"b\\" %25"')])
    assert found is not None
    assert (found.attributes["subject"], found.attributes["note"]) == ("Euro \u20ac", 'a "b" %')


@pytest.mark.parametrize(
    ("headers", "error", "message"),
    [
        (REQUIRED[1:], CallerError, "no header ce-id"),
        ([("ce-id", ""), *REQUIRED[1:]], CallerError, "no header ce-id"),
        ([*REQUIRED, ("ce-id", "2")], CallerError, "ce-id twice"),
        ([*REQUIRED, ("ce-a_b", "2")], CallerError, "names no attribute"),
        ([*REQUIRED[:3], ("ce-specversion", "0.3")], NotOfferedError, "ce-specversion '0.3'"),
        ([("content-type", "application/cloudevents+json")], NotOfferedError, "in binary mode"),
        ([("content-type", "application/cloudevents-batch+json")], NotOfferedError, "in binary mode"),
    ],
)
def test_what_is_no_cloud_event_in_binary_mode_is_refused(
    headers: list[tuple[str, str]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cloud_event(headers)


def test_the_answer_is_an_event_of_its_own_and_its_headers_are_ascii() -> None:
    first, second = (response_headers({"type": "t \u20ac\r\n"}, "f") for _ in range(2))
    assert first["ce-type"] == "t%20%E2%82%AC%0D%0A.response"
    assert first["ce-id"] != second["ce-id"]
    assert first["ce-source"] == "/functions/f"
    assert all(value.isascii() and value.isprintable() for value in first.values())
