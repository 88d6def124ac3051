"""The JSON schema of manifests: the published file is what the structs make."""

from __future__ import annotations

import json

from repository import ROOT

from trims.manifests.schema import schema


def test_the_published_schema_is_that_of_the_structs() -> None:
    published = json.loads((ROOT / "manifests" / "schema.json").read_text())
    assert published == schema(), "write it again: trims schema > manifests/schema.json"
