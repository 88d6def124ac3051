"""The command line of the endpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trims_predictors.cli.endpoint import _settings
from trims_predictors.sandbox import sandbox
from trims_predictors.sandbox.sandbox import OWN_PROCESS, Isolation

from trims.cli.main import build_parser, main
from trims.core.errors import ConfigError
from trims.daemon.config import build_config
from trims.process.packages import install_words


def settings(*arguments: str) -> object:
    return _settings(build_parser().parse_args(["endpoint", "--runtime-dir", "/run/x", *arguments]))


def test_flags_become_settings(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    flags = ["--port", "0", "--token-file", str(token), "--predictors", "3", "--queue", "4", "--keep-alive-s", "lazy"]
    flags += ["--max-body", "1MiB", "--preload", "torch,onnxruntime", "--environments", f"mxnet={sys.executable}"]
    flags += ["--load-deadline-s", "7", "--queue-deadline-s", "8.5", "--run-deadline-s", "9"]
    flags += ["--template-keep-alive-s", "5", "--template-memory", "2GiB"]
    flags += ["--isolation", "process", "--predictor-memory", "4GiB"]
    found = _settings(build_parser().parse_args(["endpoint", "--runtime-dir", "/run/x", *flags]))
    assert (found.port, found.token, found.most_body_bytes) == (0, "secret", 1 << 20)
    assert (found.pool.predictors, found.pool.queue, found.pool.keep_alive_s) == (3, 4, None)
    assert (found.preload, found.environments) == (("torch", "onnxruntime"), {"mxnet": Path(sys.executable)})
    assert (found.pool.template_keep_alive_s, found.pool.most_template_bytes) == (5.0, 2 << 30)
    assert (found.pool.isolation, found.pool.most_predictor_bytes) == (Isolation(scratch_bytes=4 << 30), 4 << 30)
    assert (found.pool.load_deadline_s, found.pool.queue_deadline_s, found.pool.run_deadline_s) == (7.0, 8.5, 9.0)
    assert found.pool.runtime_dir == "/run/x"


def test_the_default_isolation_is_the_best_that_needs_no_privilege() -> None:
    assert build_parser().parse_args(["endpoint"]).isolation == "auto"


def test_files_of_the_daemon_and_secrets_are_hidden_from_predictors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, hidden = tmp_path / "token", []
    token.write_text("secret")
    token.chmod(0o600)

    def chosen(_: str, paths: list[str]) -> Isolation:
        hidden.append(paths)
        return OWN_PROCESS

    monkeypatch.setattr(sandbox, "choose", chosen)
    config = build_config({"runtime_dir": Path("/run/x")})
    always = [str(config.state_dir), str(config.segment_dir)]
    given = [str(tmp_path / name) for name in ("state", "segments")]
    for folder in given:
        Path(folder).mkdir()
    settings("--hide", given[0], "--hide", given[1], "--token-file", str(token))
    assert hidden.pop() == [*given, *always, str(token)]
    settings()
    assert hidden.pop() == always


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--predictors", "0"], "--predictors is 0; it must be 1 or more"),
        (["--hot-spares", "-1"], "--hot-spares is -1; it must be 0 or more"),
        (["--keep-alive-s", "long"], "--keep-alive-s is 'long'"),
        (["--template-keep-alive-s", "never"], "--template-keep-alive-s is 'never'; .* or lazy"),
        (["--load-deadline-s", "lazy"], "--load-deadline-s is 'lazy'; it must be a number of seconds from 0 up$"),
        (["--template-memory", "0"], "--template-memory is '0'; it must be a size such as 2GiB, or none"),
        (["--template-memory", "much"], "'much' is not a size"),
        (["--predictor-memory", "0"], "--predictor-memory is '0'; it must be a size such as 2GiB, or none"),
        (["--predictor-memory", "1"], "--predictor-memory is '1', in which no predictor starts: .* give 16MiB or more"),
        (["--load-deadline-s", "0"], "--load-deadline-s is '0', which ends all work at once; it must be more than 0"),
        (["--run-deadline-s", "0.0"], "--run-deadline-s is '0.0', which ends all work at once; it must be more than 0"),
        (["--max-body", "0"], "--max-body is '0', which refuses all requests; give a size such as 256MiB"),
        (["--isolation", "much"], "--isolation is 'much'; it must be auto, process, user:NAME or namespaces"),
        (["--environments", "mxnet"], "framework=/path/to/python"),
        (["--environments", "mxnet=/no/python"], "/no/python, is not a file"),
        (["--token-file", "/no/token"], "no token can be read"),
        (["--max-body", "much"], "much"),
        (["--port", "99999"], "--port is '99999'; it must be a port from 1 to 65535"),
        (["--port", "none"], "--port is 'none'"),
        (["--grpc-port", "-1"], "--grpc-port is '-1'; .* 0 for any free one or none"),
    ],
)
def test_a_wrong_flag_is_told_with_what_is_right(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(*arguments)


def test_an_endpoint_that_would_listen_openly_does_not_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["endpoint", "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "can be reached from other machines" in capsys.readouterr().err


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["endpoint"]) == 1
    assert install_words("trims[endpoint]") in capsys.readouterr().err
