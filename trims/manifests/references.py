"""References to models: `name` for what the name leads to, `name@version`, and `name@label`.

No name of a model has an `@`, so the first one begins the version or the label. Paths (`file:/a@b`, `/a@b`) are no
references, and stay whole.
"""

from __future__ import annotations


def split_reference(reference: str) -> tuple[str, str]:
    """Return the name of a model, and the version or label behind it; empty for the plain name."""
    name, at, rest = reference.partition("@")
    if not at or "/" in name or ":" in name:
        return reference, ""
    return name, rest


def name_of(reference: str) -> str:
    """Return the name of the model that a reference is to."""
    return split_reference(reference)[0]


def reference_to(name: str, version: str) -> str:
    """Return the reference to a version, or by a label, of a model; the plain name if that is empty."""
    return f"{name}@{version}" if version else name
