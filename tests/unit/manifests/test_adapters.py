"""Words about adapters."""

from __future__ import annotations

from trims.manifests.adapters import adapter_words


def test_the_words_name_the_place_the_model_and_the_remedy() -> None:
    assert adapter_words("/m", "org/base").startswith("/m holds an adapter of org/base (adapter_config.json)")
    assert "merge_and_unload" in adapter_words("/m")
    assert "of another model" in adapter_words("/m")
