"""Every error has a status."""

from __future__ import annotations

import pytest
from trims_predictors.endpoint.status import status_of

from trims.core.errors import error_classes

STATUS = {
    "model_not_found": 404, "bad_request": 400, "not_supported": 501, "permission_denied": 403, "busy": 503,
    "capacity": 503, "deadline": 504, "daemon_away": 503, "draining": 503, "predictor": 500, "internal": 500,
    "bad_artifact": 500, "in_use": 409,
}  # fmt: skip


@pytest.mark.parametrize(("code", "status"), STATUS.items())
def test_a_client_can_tell_whose_fault_an_error_is_by_its_status(code: str, status: int) -> None:
    assert status_of(error_classes()[code]("why")) == status


def test_no_error_is_without_a_status() -> None:
    for cls in error_classes().values():
        assert 400 <= status_of(cls("why")) < 600
