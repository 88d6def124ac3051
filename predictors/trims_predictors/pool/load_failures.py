"""Failures: why models could not be loaded when a predictor of theirs was started last.

A failure counts for one version of the manifest in one environment, whatever tenant or place it was met at, until a
predictor of the same version has loaded the model. It refuses no request: the next one tries again. Not covered: what
can be found without a predictor, such as an environment that is not there (`deployments`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trims.core.errors import (
    CapacityError,
    DeadlineError,
    InUseError,
    LostPeerError,
    ModelNotFoundError,
    NotSupportedError,
    PermissionDeniedError,
)

if TYPE_CHECKING:
    from trims.core.errors import TrimsError
    from trims_predictors.deployment.deployment import Deployment
    from trims_predictors.deployment.key import DeploymentKey

#: Say something of the machine, the daemon or the client, and nothing of the model.
_OF_OTHERS = (
    CapacityError, DeadlineError, InUseError, LostPeerError, ModelNotFoundError, PermissionDeniedError,
)  # fmt: skip
#: Versions of models whose failures are kept; the oldest goes.
MOST_FAILURES = 4096
#: Letters of a reason, which indexes repeat for each model.
MOST_LETTERS = 1000


class Failures:
    """Reasons by version of a model. Changed in one event loop; `reason` may be called from other threads, too."""

    def __init__(self) -> None:
        #: `DeploymentKey.of_model` -> reason.
        self._reasons: dict[DeploymentKey, str] = {}

    def learn(self, deployment: Deployment, error: TrimsError) -> None:
        """Keep why a model could not be loaded, if the error is the model's."""
        if not _is_of_model(deployment, error):
            return
        text = str(error)
        reason = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."
        self._reasons.pop(deployment.key.of_model(), None)
        self._reasons[deployment.key.of_model()] = reason or type(error).__name__
        if len(self._reasons) > MOST_FAILURES:
            del self._reasons[next(iter(self._reasons))]

    def clear(self, deployment: Deployment) -> None:
        """Forget the failure of a model that has been loaded."""
        self._reasons.pop(deployment.key.of_model(), None)

    def forget(self, model: str) -> None:
        """Forget a model that was removed, in all its versions."""
        for key in [each for each in self._reasons if each.model == model]:
            del self._reasons[key]

    def reason(self, deployment: Deployment) -> str:
        """Return why the model could not be loaded; empty if nothing is known against it."""
        return self._reasons.get(deployment.key.of_model(), "")


def _is_of_model(deployment: Deployment, error: TrimsError) -> bool:
    if error.retryable or isinstance(error, _OF_OTHERS):
        return False
    # A place that one request has named may be what is not supported.
    return deployment.place is None or not isinstance(error, NotSupportedError)
