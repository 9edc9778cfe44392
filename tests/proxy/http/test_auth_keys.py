"""Where clients' keys come from, how they are compared and read again, and when none is allowed."""

from __future__ import annotations

import hmac
import logging
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Upstream, stream, whole
from tests.proxy.cli.test_cli import COMMAND
from tests.proxy.cli.test_cli import configs as configs
from tests.proxy.conftest import CHAT, MESSAGES, PROBE
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.lifecycle.test_run import Running
from tests.waiting import until
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.tables import Auth
from wellspoken.proxy.config.values import ConfigError, is_loopback, parse_listen
from wellspoken.proxy.http.auth import LONGEST, Keys, owner_of

SECRET = "sk-canary-5e1d"
BACKEND = {"backend": [{"url": "x"}]}


def knows(keys: Keys, key: str) -> bool:
    """Say whether a key is let in."""
    headers = CIMultiDictProxy(CIMultiDict({"Authorization": f"Bearer {key}"}))
    try:
        return keys.owner(headers) == owner_of(key)
    except RequestError as error:
        assert (error.status, key in error.message) == (401, False)
        return False


def test_a_file_has_one_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(
        "\ufeff# die Schlüssel\r\nsk-1\r\n\r\n  sk-2\t# of the CI\n#sk-3\nsk#4\nsk-1\n$!~5".encode()
    )
    keys = Keys((f"file:{file}", "env:A"), environ={"A": "sk-6, sk-7\nsk-8 # last\n"})
    assert len(keys) == 7
    assert all(knows(keys, key) for key in ("sk-1", "sk-2", "sk#4", "$!~5", "sk-6", "sk-7", "sk-8"))
    assert not any(knows(keys, key) for key in ("sk-3", "#sk-3", "sk-", "sk-6,", "# of the CI"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no key"),
        ("# none\n\n", "holds no key"),
        (f"{SECRET} {SECRET}\n", "line 1, is no key"),
        (f"sk-1\n{SECRET},{SECRET}\n", "line 2, is no key"),
        (f"{SECRET}é\n", "line 1, is no key"),
        (f"{SECRET}\x7f\n", "line 1, is no key"),
        (SECRET + "x" * LONGEST, "line 1, is no key"),
        ("#" * (1 << 20) + "\n", "larger than"),
        (None, "cannot read"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        Keys((f"file:{file}",))
    said = str(caught.value)
    assert said.startswith("auth.keys: ") and words in said and str(file) in said
    assert "canary" not in said


@pytest.mark.parametrize(
    ("reference", "environ", "words"),
    [
        ("env:A", {}, "the variable A is not set"),
        ("env:A", {"A": " "}, "env:A holds no key"),
        ("env:A", {"A": f"Bearer {SECRET}"}, "env:A, line 1, is no key"),
        ("file:/\0", {}, "is no path"),
        ("file:~nobody-here/keys", {}, "is no path"),
        ("file:/", {}, "cannot read /"),
    ],
)
def test_references_that_cannot_be_used(
    reference: str, environ: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Keys((reference,), environ=environ)
    assert words in str(caught.value)
    assert "canary" not in str(caught.value)


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []
    original = hmac.compare_digest

    def noting(one: bytes, other: bytes) -> bool:
        assert len(one) == len(other) == 32
        compared.append(original(one, other))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", noting)
    keys = Keys(("env:A",), environ={"A": "k1,k2,k3,k4"})
    for key, fits in (("k1", 1), ("k4", 1), ("k5", 0), ("k" * LONGEST, 0)):
        compared.clear()
        assert knows(keys, key) is bool(fits)
        assert (len(compared), sum(compared)) == (4, fits)


def test_no_key_is_kept() -> None:
    """Looks through all that the object reaches but the environment, which is not its own."""
    keys = Keys(("env:A",), environ={"A": SECRET})
    held = {name: value for name, value in vars(keys).items() if name != "_environ"}
    assert SECRET not in repr(held) + repr(keys)
    assert knows(keys, SECRET)


def test_a_comparison_is_cheap() -> None:
    """A thousand keys cost a request less than some milliseconds of the loop's time."""
    keys = Keys(("env:A",), environ={"A": "\n".join(f"sk-{number}" for number in range(1000))})
    times = []
    for _ in range(20):
        began = time.thread_time()
        assert knows(keys, "sk-999")
        times.append(time.thread_time() - began)
    assert min(times) < 0.003


def served(upstream: Upstream, *keys: str) -> Running:
    """Start a proxy with these references as `serve` runs it."""
    tables = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": upstream.url, "adapter": "openai"}],
        "auth": {"keys": keys},
        "timeouts": {"probe": PROBE},
    }
    return Running(load(None, tables, {}))


async def test_sighup_reads_keys_again_and_open_streams_go_on(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    file.write_text("sk-old")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script("/v1/models", whole({"object": "list", "data": []}))
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    running = served(upstream, f"file:{file}")
    url = await running.url()
    assert 'Authorization: Bearer $OPENAI_API_KEY"' in await running.said
    assert len((await running.said).split("\n")) <= 13
    asked = {"model": MODEL, "messages": MESSAGES, "stream": True}
    old, new = ({"Authorization": f"Bearer {key}"} for key in ("sk-old", "sk-new"))
    async with aiohttp.ClientSession() as session:
        response = await session.post(url + CHAT, json=asked, headers=old)
        file.write_text("")
        running.signal(signal.SIGHUP)
        await until(lambda: "stays as before" in caplog.text)
        running.signal(signal.SIGHUP)
        await until(lambda: caplog.text.count("holds no key") >= 2)  # said again when asked for
        file.write_text("sk-new")
        running.signal(signal.SIGHUP)
        await until(lambda: "client keys: 1 (1 new, 1 gone)" in caplog.text)
        for headers, status in ((old, 401), (new, 200)):
            async with session.get(f"{url}/v1/capabilities", headers=headers) as other:
                assert other.status == status
        gate.open()
        assert await response.read() == b"".join(EVENTS) + DONE
    running.signal()
    assert await running.task == 0
    assert not hasattr(signal.getsignal(signal.SIGHUP), "__self__")  # no service takes it


async def test_keys_that_cannot_be_read_end_it(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    assert await served(upstream, "env:NO_SUCH_KEY").task == 2
    assert "auth.keys[0]: the variable NO_SUCH_KEY is not set" in caplog.text


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.9:1", True),
        ("LocalHost:1", True),
        ("[::1]:1", True),
        ("8010", True),
        (":1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.0.2.1:1", False),
        ("127.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_open_is_for_this_machine_alone(listen: str, local: bool) -> None:
    tables = {**BACKEND, "server": {"listen": listen}}
    assert is_loopback(parse_listen(listen)[0]) is local
    for auth in ("none", {"keys": ["env:A"]}):
        assert load(None, {**tables, "auth": auth}, {}).auth in ("none", Auth(keys=("env:A",)))
    if local:
        assert load(None, tables, {}).auth == Auth()
        return
    with pytest.raises(ConfigError) as caught:
        load(None, tables, {})
    for way in ("--key env:NAME", "listen on 127.0.0.1", "--auth none"):
        assert way in str(caught.value)


def test_layers_of_auth(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[auth]\nkeys = ['env:A']\n[[backend]]\nurl = 'x'\n")
    keys = {"WELLSPOKEN_AUTH_KEYS": "env:B, file:C,"}
    assert load(file, environ={}).auth == Auth(keys=("env:A",))
    assert load(file, environ=keys).auth == Auth(keys=("env:B", "file:C"))
    assert load(file, environ={"WELLSPOKEN_AUTH": "none"}).auth == "none"
    assert load(file, {"auth": "none"}, keys).auth == "none"
    file.write_text("auth = 'none'\n[[backend]]\nurl = 'x'\n")
    assert load(file, environ={}).auth == "none"
    assert load(file, environ=keys).auth == Auth(keys=("env:B", "file:C"))
    assert load(file, {"auth": {"keys": ["env:D"]}}, {}).auth == Auth(keys=("env:D",))


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        (f"auth = '{SECRET}'", {}, 'can only be "none"'),
        (f"[auth]\nkeys = ['{SECRET}']", {}, "auth.keys[0]: write env:NAME"),
        (f"[auth]\nkeys = ['env:A', '{SECRET}']", {}, "auth.keys[1]: write env:NAME"),
        (f"[auth]\nkeys = '{SECRET}'", {}, "auth.keys: "),
        (f"auth = ['{SECRET}']", {}, "auth: "),
        ("[auth]\nkey = ['env:A']", {}, "auth.key: unknown key. Did you mean keys?"),
        ("", {"WELLSPOKEN_AUTH": SECRET}, 'can only be "none"'),
        ("", {"WELLSPOKEN_AUTH_KEYS": f"env:A,{SECRET}"}, "auth.keys[1]: write env:NAME"),
        ("[auth]\nkeys = ['env:A']", {"WELLSPOKEN_AUTH_KEYS": ""}, "WELLSPOKEN_AUTH_KEYS is empty"),
        ("", {"WELLSPOKEN_AUTH": "none", "WELLSPOKEN_AUTH_KEYS": "env:A"}, "are both set"),
    ],
)
def test_errors_do_not_repeat_a_key(
    tmp_path: Path, text: str, environ: dict[str, str], words: str
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(f"{text}\n[[backend]]\nurl = 'x'\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ=environ)
    assert words in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "command", [["localhost:9"], ["serve", "--engine", "llamacpp", "--model", "m"]]
)
def test_flags(configs: list[Config], command: list[str]) -> None:
    everywhere = ["--listen", "0.0.0.0:1"]
    assert main([*command, *everywhere, "--key", "env:A", "--key", "file:B"]) == 0
    assert main([*command, *everywhere, "--auth", "none"]) == 0
    assert [config.auth for config in configs] == [Auth(keys=("env:A", "file:B")), "none"]


@pytest.mark.parametrize(
    "flags", [["--key", SECRET], ["--auth", SECRET], ["--listen", ":1"], ["--key", "env:"]]
)
def test_wrong_flags(
    configs: list[Config], capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main(["localhost:9", *flags]) == 2
    said = capsys.readouterr().err
    assert "env:NAME" in said and "canary" not in said
    with pytest.raises(SystemExit):
        main(["localhost:1", "--auth", "none", "--key", "env:A"])
    assert configs == []


def test_a_process_shows_no_key() -> None:
    """Its command line, as `ps` has it, and all that it writes with asyncio's debug mode on."""
    command = [*COMMAND, "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--key", "env:KEY"]
    environ = {**os.environ, "KEY": SECRET, "PYTHONASYNCIODEBUG": "1", "PYTHONDEVMODE": "1"}
    with subprocess.Popen(command, stdout=PIPE, stderr=STDOUT, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "listens on" not in said:  # asyncio may tell before that something was slow
                line = process.stdout.readline()
                assert line, said
                said += line
            url = said.split("listens on ")[1].strip()
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            for key, status in ((SECRET, 502), (f"{SECRET}x", 401)):
                headers = {"Authorization": f"Bearer {key}"}
                with pytest.raises(HTTPError) as caught:
                    urlopen(Request(f"{url}/v1/models", headers=headers), timeout=120)
                said += caught.value.read().decode()
                assert caught.value.code == status
                caught.value.close()
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGTERM)
            said += process.stdout.read()
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()
    assert b"env:KEY" in shown
    assert "canary" not in said + shown.decode()
