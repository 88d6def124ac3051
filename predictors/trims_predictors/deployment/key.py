"""Keys that distinguish the workers of one deployment from those of another."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class DeploymentKey:
    """Key of a deployment: one version of a model's manifest, at one place, for one tenant.

    Attributes:
        digest: Changes whenever the manifest, or the code beside it, has changed.
        place: Place that requests name; empty for the manifest's.
        tenant: Name of the tenant that the workers are for; empty for the operator's.
    """

    model: str
    digest: str = ""
    place: str = ""
    tenant: str = ""

    def of_model(self) -> DeploymentKey:
        """Return the key without place and tenant, which all that use this version of the manifest have."""
        return replace(self, place="", tenant="")

    @property
    def subject(self) -> str:
        """Name of model and tenant, for people."""
        return f"{self.model}/{self.tenant}" if self.tenant else self.model

    def __str__(self) -> str:
        """Return the key for logs and messages."""
        return f"{self.subject}@{self.digest}" + (f" at {self.place}" if self.place else "")
