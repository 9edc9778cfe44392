"""[[auth.client]]: what is wrong with it, what is doubtful, and how it is shown."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import load
from wellspoken.proxy.config.tables import Auth

HEAD = """\
[server]
listen = "127.0.0.1:0"
[[backend]]
url = "http://x"
models = ["llama", "qwen"]
"""


def check(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> list[dict[str, Any]]:
    """Return what `wellspoken check` says of a file that begins with HEAD."""
    file = tmp_path / "w.toml"
    file.write_text(HEAD + text)
    main(["check", "--json", str(file)])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return found


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("keys = ['env:A']", "auth.client[0].name", "it is missing"),
        ("name = 'a'", "auth.client[0].keys", "has no keys"),
        ("name = 'a'\nkeys = ['sk-1']", "auth.client[0].keys[0]", "write env:NAME"),
        ("name = 'a'\nkeys = ['env:NO']", "auth.client[0].keys[0]", "the variable NO is not set"),
        ("name = 'a b'\nkeys = ['env:A']", "auth.client[0].name", "regex"),
        ("name = 'a'\nkeys = ['env:A']\nmodels = []", "auth.client[0].models", "no model"),
        ("name = 'a'\nkeys = ['env:A']\nexpires = 5", "auth.client[0].expires", "date"),
        (
            "name = 'a'\nkeys = ['env:A']\n[[auth.client]]\nname = 'a'\nkeys = ['env:B']",
            "auth.client[1].name",
            "two are named 'a'",
        ),
        (
            "name = 'a'\nkeys = ['env:A']\n[[auth.client]]\nname = 'b'\nkeys = ['env:A']",
            "auth.client[1].keys[0]",
            "auth.client[0] has the keys of env:A too",
        ),
        (
            "name = 'a'\nkeys = ['env:A']\n[[auth.client]]\nname = 'b'\nkeys = ['env:SAME']",
            "auth.client",
            "a key of b is somebody else's too",
        ),
    ],
)
def test_what_is_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    key: str,
    words: str,
) -> None:
    for name, value in (("A", "sk-canary-1"), ("B", "sk-canary-2"), ("SAME", "sk-canary-1")):
        monkeypatch.setenv(name, value)
    (found,) = check(tmp_path, capsys, f"[[auth.client]]\n{text}\n")
    assert (found["severity"], found["key"]) == ("error", key), found
    assert words in found["message"] and "sk-" not in found["message"]
    assert found["line"] is not None


@pytest.mark.parametrize(
    ("text", "severity", "words"),
    [
        ("counters = 'http://x'", "error", "write redis://host:6379"),
        ("counters = 'env:NO'", "error", "the variable NO is not set"),
        ("counters = 'redis://:canary@x:y/'", "error", "Correct the URL"),
        ("counters = 'redis://:canary@x'", "warning", "no client has a limit"),
    ],
)
def test_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, severity: str, words: str
) -> None:
    quota = "concurrent = 1\n" if severity == "error" else ""
    file = tmp_path / "keys"
    file.write_text("sk-1")
    client = f"[[auth.client]]\nname = 'a'\nkeys = ['file:{file}']\n{quota}"
    (found,) = check(tmp_path, capsys, f"[auth]\n{text}\n{client}")
    assert (found["severity"], found["key"]) == (severity, "auth.counters"), found
    assert words in found["message"] and "canary" not in found["message"]
    main(["config", "show", str(tmp_path / "w.toml")])
    assert "canary" not in capsys.readouterr().out


def test_counters_need_redis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "wellspoken.proxy.limits.redis_counters", raising=False)
    (tmp_path / "keys").write_text("sk-1")
    client = f"name = 'a'\nkeys = ['file:{tmp_path}/keys']\nconcurrent = 1\n"
    text = f"[auth]\ncounters = 'redis://x'\n[[auth.client]]\n{client}"
    (found,) = check(tmp_path, capsys, text)
    assert found["message"] == "auth.counters: it needs redis: pip install 'redis>=6'."


def test_what_is_doubtful(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A", "sk-1")
    text = "[[backend]]\nname = 'b'\nurl = 'http://y'\nmodels = ['phi']\n[[auth.client]]\n"
    text += "name = 'a'\nkeys = ['env:A']\nmodels = ['ll*', 'gemma']\nexpires = 2020-01-01\n"
    found = check(tmp_path, capsys, text)
    assert [(one["severity"], one["key"]) for one in found] == [
        ("warning", "auth.client[0].models[1]"),
        ("warning", "auth.client[0].expires"),
    ]
    assert "'gemma'" in found[0]["message"] and "has expired" in found[1]["message"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2027-01-01", "2027-01-01T00:00:00+00:00"),
        ("2027-01-01T06:00:00", "2027-01-01T06:00:00"),
        ("2027-01-01T06:00:00+02:00", "2027-01-01T06:00:00+02:00"),
    ],
)
def test_what_is_shown_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, meant: str
) -> None:
    file = tmp_path / "w.toml"
    client = f"name = 'a'\nkeys = ['env:A']\nexpires = {written}\nmodels = ['x*']\n"
    file.write_text(f"{HEAD}[auth]\nkeys = ['env:B']\n[[auth.client]]\n{client}")
    config = load(file, {}, {})
    assert isinstance(config.auth, Auth)
    assert config.auth.client[0].expires == datetime.fromisoformat(meant)
    assert main(["config", "show", str(file)]) == 0
    shown = tmp_path / "shown.toml"
    shown.write_text(capsys.readouterr().out)
    assert load(shown, {}, {}) == config
    assert main(["config", "show", "--json", str(file)]) == 0
    rows = {one["key"]: one["value"] for one in json.loads(capsys.readouterr().out)}
    assert rows["auth.client[0].expires"] == meant


def test_other_keys_leave_the_clients_alone(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        f"{HEAD}[auth]\nkeys = ['env:B']\n[[auth.client]]\nname = 'a'\nkeys = ['env:A']"
    )
    for flags, environ in (
        ({"auth": {"keys": ["env:C"]}}, {}),
        ({}, {"WELLSPOKEN_AUTH_KEYS": "env:C"}),
    ):
        auth = load(file, flags, environ).auth
        assert isinstance(auth, Auth)
        assert (auth.keys, [one.name for one in auth.client]) == (("env:C",), ["a"])


def test_a_named_client_is_enough_for_other_machines(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    client = "[[auth.client]]\nname = 'a'\nkeys = ['env:A']\n"
    file.write_text(HEAD.replace("127.0.0.1:0", "0.0.0.0:0") + client)
    assert load(file, {}, {}).auth != Auth()
