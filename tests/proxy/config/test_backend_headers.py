"""`forward_headers` and `headers` of a backend: what they may name, and what is never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import Config, examine, load
from wellspoken.proxy.config.backend_headers import client_headers, read_headers
from wellspoken.proxy.config.tables import FORWARDED
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import outside
from wellspoken.proxy.lifecycle.hosted import _own
from wellspoken.proxy.lifecycle.outside import missing

CANARY = "canary-0123456789"
CREDENTIALS = [
    *("Authorization", "Cookie", "set-cookie", "Proxy-Authorization"),
    *("x-api-key", "api-key", "apikey", "X-Auth-Token", "x-goog-iap-jwt-assertion"),
    *("cf-access-client-secret", "x-amz-security-token", "x-forwarded-access-token"),
    *("x-session-token", "www-authenticate", "ocp-apim-subscription-key", "x-hub-signature-256"),
]
NEVER = [
    *("Connection", "keep-alive", "TE", "trailer", "Transfer-Encoding", "upgrade", "expect"),
    *("proxy-connection", "Proxy-Anything", "host", "Content-Length", "content-type"),
    *("content-encoding", "Content-Digest", "accept", "accept-encoding", "user-agent"),
    *("x-request-id", "X-Wellspoken-Extensions", "x-wellspoken-keep", "traceparent"),
    *("tracestate", "anthropic-version", "anthropic-beta"),
    *("x-foo-*\r\nx: y", "a b", "x:y", "é", "x\n"),
]
GOOD = [
    *("x-session-id", "Session_Id", "baggage", "x-data-parallel-rank", "x-tenant", "b3"),
    *("x-forwarded-for", "x-authority", "x-keyboard", "x-tokens-left", "monkey", "x-author"),
]


def configured(**more: Any) -> Config:
    backend = {"url": "http://localhost:8000", **more}
    return load(None, {"server": {"listen": "127.0.0.1:1"}, "backend": [backend]}, {})


@pytest.mark.parametrize("name", [*NEVER, *CREDENTIALS])
def test_a_header_that_no_client_may_send_on(name: str) -> None:
    """Mutants: each of the four expressions matching nothing."""
    with pytest.raises(ConfigError) as caught:
        configured(forward_headers=["x-fine", name])
    said = str(caught.value)
    assert said.startswith("backend[0].forward_headers[1]: ") and repr(name) in said
    with pytest.raises(ConfigError, match=r"engine\.forward_headers\[0\]"):
        engine = {"kind": "vllm", "model": "m", "forward_headers": [name]}
        load(None, {"engine": engine}, {})


@pytest.mark.parametrize("name", [*NEVER, *CREDENTIALS[:4]])
def test_a_header_that_no_backend_is_set(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(headers={name: CANARY})
    assert repr(name) in str(caught.value) and CANARY not in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_other_headers_may_be_named(name: str) -> None:
    assert client_headers(configured(forward_headers=[name]).backend[0]) == (name.lower(),)
    found = read_headers(configured(headers={name: "a b"}).backend[0].headers)
    assert found == (f"{name}: a b\r\n".encode(), ())


@pytest.mark.parametrize(
    "value", ["", " ", " x", "x ", "a\r\nx-evil: 1", "a\nb", "é", "\t", "\x00"]
)
def test_a_value_that_no_header_has(value: str) -> None:
    with pytest.raises(ConfigError, match=r"backend\[0\]\.headers: 'x-a' has a value"):
        configured(headers={"x-a": value})


@pytest.mark.parametrize("name", CREDENTIALS[4:])
def test_a_credential_stands_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name.startswith("www"):
        with pytest.raises(ConfigError, match="write env:NAME or file:PATH") as caught:
            configured(headers={name: CANARY})
        assert CANARY not in str(caught.value)
        monkeypatch.setenv("A_SECRET", f" {CANARY}\n")
        found = read_headers(configured(headers={name: "env:A_SECRET"}).backend[0].headers)
        assert found == (f"{name}: {CANARY}\r\n".encode(), (CANARY,))


def test_a_header_stands_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        configured(headers={"x-a": "1", "X-A": "2"})
    with pytest.raises(ConfigError, match='auth = "pass"'):
        configured(headers={"X-Api-Key": "env:A"}, auth="pass")
    backend = configured(headers={"X-Session-Id": "1"}).backend[0]
    assert client_headers(backend) == FORWARDED[1:]


def test_a_client_says_sessions_and_routes_by_default() -> None:
    assert client_headers(configured().backend[0]) == FORWARDED
    assert client_headers(configured(forward_headers=[]).backend[0]) == ()
    assert client_headers(configured(forward_headers=["A", "a"]).backend[0]) == ("a",)


@pytest.mark.parametrize("reference", ["env:NOT_THERE_12", "file:/nowhere/at/all", "file:EMPTY"])
def test_a_value_that_cannot_be_read(reference: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    reference = reference.replace("EMPTY", str(tmp_path / "empty"))
    config = configured(headers={"x-fine": "1", "x-key": reference})
    with pytest.raises(ConfigError, match=r"backend\[0\]\.headers\.x-key: "):
        outside(config.backend[0], "backend[0]")
    (problem,) = missing(config)
    assert problem.path == ("backend", 0, "headers", "x-key")
    assert problem.text.startswith("backend[0].headers.x-key: ")
    assert problem.text.count("x-key") == 1


def test_no_value_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Mutant: `visible` without headers."""
    file = tmp_path / "w.toml"
    file.write_text(
        '[[backend]]\nurl = "http://x"\n'
        f'headers = {{ x-tenant = "{CANARY}", x-key = "env:GATEWAY_KEY" }}\n'
    )
    for arguments in ([], ["--json"]):
        assert main(["config", "show", *arguments, str(file)]) == 0
        said = capsys.readouterr().out
        assert CANARY not in said and "env:GATEWAY_KEY" in said and "x-tenant" in said
    found = examine(file, {}, {}).problems
    assert found == []


def test_an_engine_does_not_get_the_variables_of_headers() -> None:
    """Mutant: `_own` with keys alone."""
    config = configured(headers={"x-key": "env:GATEWAY_KEY", "x-a": "b"}, key="env:ONE")
    assert {*_own(config)} == {"GATEWAY_KEY", "ONE"}
