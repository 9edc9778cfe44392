"""`wellspoken check`: all that is wrong with a configuration, each with its line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port, hold
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import examine, load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import build

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"
BAD = """\
listen = "127.0.0.1:1"
[server]
listn = "127.0.0.1:8010"
workers = "two"
[timeouts]
connect = 0
[log]
level = "inf"
[[backend]]
name = "a"
url = "ftp://x"
models = [5, "m"]
key = "env:WELLSPOKEN_NO_SUCH_KEY"
adapter = "vlm"
[[backend]]
name = "a"
url = "http://y"
tokenizer = "nope.json"
endpoints = ["/v1/rerank", "slots"]
[backend.caps]
allow = ["chat_templ"]
"""
WRONG = [
    (1, 1, "listen", "It belongs under [server]."),
    (3, 1, "server.listn", "Did you mean listen?"),
    (4, 11, "server.workers", "Write a whole number, without quotes."),
    (6, 11, "timeouts.connect", "> 0"),
    (8, 9, "log.level", 'Did you mean "info"?'),
    (11, 7, "backend[0].url", "no http(s) URL"),
    (12, 11, "backend[0].models[0]", "Put it in quotes."),
    (14, 11, "backend[0].adapter", "Did you mean 'vllm'?"),
    (15, 3, "backend[1].models", "needs models"),
    (16, 8, "backend[1].name", "two are named 'a'"),
    (19, 28, "backend[1].endpoints[1]", "'slots' is no full path"),
    (21, 10, "backend[1].caps.allow[0]", "Did you mean chat_template?"),
]
MISSING = [
    (13, 7, "backend[0].key", "the variable WELLSPOKEN_NO_SUCH_KEY is not set"),
    (18, 13, "backend[1].tokenizer", "no readable file"),
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WELLSPOKEN_LISTEN", "127.0.0.1:0")


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit code of `wellspoken check`, and what it printed on stdout."""
    code = main(["check", *arguments])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(("flags", "more"), [(["--file-only"], []), ([], MISSING)])
def test_every_problem_is_told_at_its_place(
    capsys: pytest.CaptureFixture[str], flags: list[str], more: list[Any]
) -> None:
    Path("bad.toml").write_text(BAD)
    code, said = checked(capsys, *flags, "bad.toml")
    assert code == 1
    *lines, last = said.splitlines()
    expected = sorted(WRONG + more)
    assert [line.split(": ")[0] for line in lines] == [f"bad.toml:{e[0]}:{e[1]}" for e in expected]
    for line, (*_, words) in zip(lines, expected, strict=True):
        assert ": error: " in line and words in line
    assert last == f"bad.toml: {len(expected)} errors."
    code, said = checked(capsys, *flags, "bad.toml", "--json")
    found = json.loads(said)
    assert (code, found["ok"], found["file"]) == (1, False, "bad.toml")
    told = [(each["line"], each["column"], each["key"]) for each in found["findings"]]
    assert told == [each[:3] for each in expected]
    assert {(each["source"], each["name"]) for each in found["findings"]} == {("file", "bad.toml")}


@pytest.mark.parametrize("line", [line for line in BAD.splitlines() if "=" in line])
def test_without_a_line_its_problem_is_gone(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """What is said follows from the file: one wrong line less, and none of its problems."""
    at = BAD.splitlines().index(line) + 1
    text = BAD.replace(f"{line}\n", "\n", 1)
    Path("bad.toml").write_text(text)
    found = json.loads(checked(capsys, "--json", "--file-only", "bad.toml")[1])["findings"]
    places = {(each["line"], each["column"]) for each in found}
    assert at not in {place[0] for place in places}
    dependent = {at, 16} if line == 'name = "a"' else {at}  # of two equal names the second is told
    assert {each[:2] for each in WRONG if each[0] not in dependent} <= places


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[server]\nlisten = \n", "2:10", "not TOML"),
        ("[server]\nx = 1\nx = 2\n", "3:6", "not TOML"),
        ('[server]\nlisten = "x', "2:12", "not TOML"),
        ("[log]\n[log]\n", "2:5", "not TOML: Cannot declare [log] twice."),
        ('a={}\n[a."b\'c"]\n', "2:9", "not TOML: Cannot declare [a.b'c] twice."),
        ("x = [\n", "1:6", "not TOML"),
        ("x = " + 9999 * "[" + 9999 * "]", "1:1", "not TOML: it is nested too deeply."),
    ],
)
def test_what_is_no_toml(
    capsys: pytest.CaptureFixture[str], text: str, place: str, words: str
) -> None:
    Path("w.toml").write_text(text)
    code, said = checked(capsys, "w.toml")
    assert code == 1
    assert said.startswith(f"w.toml:{place}: error: the file is {words}")
    assert len(said.splitlines()) == 2
    with pytest.raises(ConfigError) as caught:
        load(Path("w.toml"))
    assert str(caught.value).startswith(f"w.toml:{place}: ")


def test_what_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    Path("w.toml").write_bytes(b"[server]\nhosts = ['\xc3\xa4', '\xff']\n")
    code, said = checked(capsys, "w.toml")
    assert code == 1
    assert said.startswith("w.toml:2:16: error: the file is not TOML: this is no UTF-8 text.")


def test_the_example_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(capsys, str(EXAMPLE))
    assert code == 0
    assert said.startswith(f"{EXAMPLE}: good. It listens on 127.0.0.1:0, in front of vllm (http:")
    assert json.loads(checked(capsys, "--json", str(EXAMPLE))[1])["findings"] == []


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nowhere.toml"]) == 2
    assert "cannot read nowhere.toml: No such file" in capsys.readouterr().err


def test_variables_and_flags_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("w.toml").write_text("[[backend]]\nurl = 'x'\n[timeouts]\nconnect = 'soon'\n")
    assert "w.toml:4:11: error: timeouts.connect" in checked(capsys, "w.toml")[1]
    monkeypatch.setenv("WELLSPOKEN_TIMEOUTS_CONNECT", "5")
    assert checked(capsys, "w.toml")[0] == 0
    monkeypatch.setenv("WELLSPOKEN_TIMEOUTS_PROBE", "never")
    monkeypatch.setenv("WELLSPOKEN_LISTEN", "nowhere")
    code, said = checked(capsys, "w.toml")
    assert code == 1
    assert "WELLSPOKEN_TIMEOUTS_PROBE='never': 'never' is no length of time. Write it" in said
    assert "WELLSPOKEN_LISTEN: error: listen: 'nowhere' is no address" in said
    code, said = checked(capsys, "w.toml", "--listen", "8010x")
    assert "--listen: error: listen: '8010x' is no address" in said
    with pytest.raises(ConfigError, match=r"^WELLSPOKEN_LISTEN: listen: 'nowhere' is no address"):
        load(None, {"backend": [{"url": "x"}]}, {"WELLSPOKEN_LISTEN": "nowhere"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("WELLSPOKEN_LISTN", "WELLSPOKEN_LISTEN"),
        ("WELLSPOKEN_SERVER_LISTEN", "WELLSPOKEN_LISTEN"),
        ("wellspoken_drain_timeout", "WELLSPOKEN_DRAIN_TIMEOUT"),
        ("WELLSPOKEN_TIMEOUT_CONNECT", "WELLSPOKEN_TIMEOUTS_CONNECT"),
        ("WELLSPOKEN_AUTH_KEY", "WELLSPOKEN_AUTH_KEYS"),
        ("WELLSPOKEN_PORT", ""),
        ("WELLSPOKEN_SERVICE_PORT_HTTP", ""),
        ("WELLSPOKEN_PORT_8010_TCP_ADDR", ""),
        ("WELLSPOKEN_STORE_SERVICE_HOST", ""),
        ("WELLSPOKEN_HOME_OF_MINE", ""),
        ("WELLSPOKEN_STORE_PATH", ""),
    ],
)
def test_a_variable_that_nothing_reads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    Path("w.toml").write_text("[[backend]]\nurl = 'x'\n")
    monkeypatch.setenv(name, "w.db")
    code, said = checked(capsys, "w.toml")
    assert code == 0
    text = f"warning: {name}: nothing reads this variable. Did you mean {meant}?\n"
    assert said.startswith(text if meant else "w.toml: good. ")


@pytest.mark.parametrize("name", ["WELLSPOKEN_URL", "WELLSPOKEN_BACKEND_URL"])
def test_no_variable_names_a_backend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A service of Kubernetes that is called wellspoken-backend has variables as well."""
    Path("w.toml").write_text("[[backend]]\nurl = 'x'\n")
    monkeypatch.setenv("WELLSPOKEN_BACKEND_PORT_80_TCP", "tcp://10.0.0.1:80")
    monkeypatch.setenv(name, "http://localhost:8000")
    code, said = checked(capsys, "w.toml")
    assert (code, said.count("warning: ")) == (0, 1)
    assert f"{name}: nothing reads this variable. Backends are named in a file" in said


def test_an_endpoint_that_is_taken_off_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://localhost:8000/v1/chat/completions"
    Path("w.toml").write_text(f'[[backend]]\nurl = "{url}"\n')
    code, text = checked(capsys, "w.toml")
    assert code == 0
    assert "w.toml:2:7: warning: backend[0]: url: /v1/chat/completions is an endpoint" in text
    assert "Write it like http://localhost:8000\n" in text


def test_a_taken_port_is_only_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with hold(port) as taken:
        taken.listen()
        monkeypatch.delenv("WELLSPOKEN_LISTEN")
        Path("w.toml").write_text(f"[server]\nlisten='127.0.0.1:{port}'\n[[backend]]\nurl='x'\n")
        code, said = checked(capsys, "w.toml")
        assert code == 0
        assert said.startswith(f"w.toml:2:8: warning: server.listen: port {port} is taken.")
    assert "warning" not in checked(capsys, "w.toml")[1]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[auth]\nkeys = ['env:NO', 'file:nowhere']\n", "2:9", "auth.keys[0]: the variable NO is"),
        ("[store]\nurl = 'env:NO'\n", "2:7", "store.url: the variable NO is not set"),
        ("[store]\nurl = 'postgresql://h:x/d'\n", "2:7", "store.url: cannot be read: write"),
        ("[store]\npath = 'w.toml/x/y.db'\n", "2:8", "is a file, so nothing"),
        ("[engine]\nkind = 'llamacpp'\nmodel = 'no.gguf'\n", "3:9", "no.gguf"),
        ("[engine]\nkind = 'vllm'\nmodel = 'a/b'\nexecutable = '/no/vllm'\n", "4:14", "/no/vllm"),
        (
            "[engine]\nkind = 'vllm'\nmodel = 'a/b'\nenvironment = { T = 'env:NO' }\n",
            "4:21",
            "the variable NO is not set",
        ),
    ],
)
def test_what_is_not_there(
    capsys: pytest.CaptureFixture[str], text: str, place: str, words: str
) -> None:
    Path("w.toml").write_text(f"{text}[[backend]]\nurl = 'x'\nmodels = ['m']\n")
    assert checked(capsys, "--file-only", "w.toml")[0] == 0
    code, said = checked(capsys, "w.toml")
    assert code == 1
    line = next(line for line in said.splitlines() if line.startswith(f"w.toml:{place}: "))
    assert ": error: " in line and words in line


async def test_what_the_proxy_would_refuse_is_found() -> None:
    """`build` is the judge: of each file that it refuses, check names the same key."""
    from wellspoken.proxy.lifecycle.outside import misnamed, missing

    for extra in ("adapter = 'vlm'", "tokenizer = 'no.json'", "key = 'env:NO'", "endpoints=['x']"):
        Path("w.toml").write_text(f"[[backend]]\nurl = 'x'\n{extra}\n")
        examined = examine(Path("w.toml"))
        assert examined.problems == []
        with pytest.raises(ConfigError) as caught:
            build(examined.config)
        (problem,) = (*misnamed(examined.config), *missing(examined.config))
        assert str(caught.value).startswith("backend[0].")
        assert problem.path[:3] == ("backend", 0, extra.split("=")[0].strip())


@pytest.mark.parametrize("key", ["large_to = 'large'", "large = 1048576"])
def test_a_key_that_was_removed_says_so(capsys: pytest.CaptureFixture[str], key: str) -> None:
    name, value = key.split(" = ")
    Path("w.toml").write_text(f"[store]\npath = 'w.db'\n{key}\n[[backend]]\nurl = 'x'\n")
    code, said = checked(capsys, "--file-only", "w.toml")
    assert code == 1 and said.count(": error: ") == 1
    assert said.startswith(f"w.toml:3:1: error: store.{name}: ") and "Take it out." in said
    variable = f"WELLSPOKEN_STORE_{name.upper()}"
    with pytest.raises(ConfigError, match=rf"^{variable}: .* Take it out\."):
        load(None, {"backend": [{"url": "x"}]}, {variable: value})
    if name == "large_to":
        assert "export them first with the version that put them there" in said


def test_workers_and_an_engine() -> None:
    Path("w.toml").write_text("[engine]\nkind='vllm'\nmodel='a/b'\n[server]\nworkers = 2\n")
    with pytest.raises(ConfigError, match=r"^w\.toml:5:11: server\.workers: an engine is started"):
        load(Path("w.toml"))


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_no_secret_is_repeated(capsys: pytest.CaptureFixture[str], flag: list[str]) -> None:
    lines = (
        "auth = 'sk-canary'\n[store]\nurl = 'postgresql://u:canary@h/d'\npath='x'\n"
        "[[backend]]\nurl = 'http://u:canary@x'\nkey = 'sk-canary'\nauth = 'sk-canary'\n"
    )
    Path("w.toml").write_text(lines)
    code, said = checked(capsys, *flag, "w.toml")
    assert (code, "canary" in said) == (1, False)
    assert said.count("auth") >= 2


@pytest.mark.parametrize("url", ["http://x?key=canary", "ftp://u:canary@x", "http://u:canary@x:y"])
def test_no_part_of_a_url_that_may_be_secret_is_repeated(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    Path("w.toml").write_text(f"[[backend]]\nurl = '{url}'\n")
    code, said = checked(capsys, "w.toml")
    assert code == 1 and said.startswith("w.toml:2:7: error: backend[0]: url: it ")
    assert "canary" not in said


def test_a_key_in_the_place_of_auth_is_not_to_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("w.toml").write_text("auth = ['sk-canary']\n[[backend]]\nurl = 'http://x'\n")
    code, said = checked(capsys, "w.toml")
    assert (code, "canary" in said) == (1, False)
    assert 'keys = ["env:NAME"]' in said and "Put it in quotes" not in said


def test_a_byte_order_mark_is_no_part_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    text = "backend = [{ url = 'http://x', nam = 'a' }]\r\n"
    Path("w.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    code, said = checked(capsys, "--file-only", "w.toml")
    assert code == 1 and said.startswith("w.toml:1:32: error: backend[0].nam: unknown key.")


def test_what_has_no_end_is_not_read_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/dev/zero"]) == 2
    assert "/dev/zero has more than 64 MiB. Give the path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("WELLSPOKEN_AUTH", "sk-canary", "WELLSPOKEN_AUTH: error: auth: "),
        ("WELLSPOKEN_LOG_LEVEL", "INFO", "'INFO': Did you mean \"info\"? Or unset it."),
        ("WELLSPOKEN_WATCH", "", "WELLSPOKEN_WATCH='': Write true or false. Or unset it."),
        ("WELLSPOKEN_TIMEOUTS_PROBE", "5x", "Write it like 90s, 15m or 1h30m. Or unset it."),
        ("WELLSPOKEN_LIMITS_INFLIGHT", "5x", "'5x': Write a whole number. Or unset it."),
    ],
)
def test_what_a_variable_may_hold_is_told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
    words: str,
) -> None:
    monkeypatch.setenv(variable, text)
    Path("w.toml").write_text("[[backend]]\nurl = 'http://x'\n")
    code, said = checked(capsys, "w.toml")
    assert code == 1 and words in said and "canary" not in said


@pytest.mark.parametrize(
    ("listen", "url", "here"),
    [
        ("127.0.0.1:8010", "localhost:8010/v1", True),
        ("0.0.0.0:80", "http://127.0.0.1", True),
        ("[::1]:8010", "http://[::1]:8010", True),
        ("127.0.0.1:8010", "http://127.0.0.1:8011", False),
        ("127.0.0.1:8010", "http://gpu:8010", False),
        ("127.0.0.1:8010", "https://localhost:8010", False),
        ("127.0.0.1:8010", "unix:/tmp/api.sock", False),
        ("127.0.0.1:0", "http://127.0.0.1", False),
    ],
)
def test_the_proxy_does_not_stand_before_itself(listen: str, url: str, here: bool) -> None:
    flags = {"server": {"listen": listen}, "auth": "none", "backend": [{"url": url}]}
    said = [problem.text for problem in examine(None, flags, {}).problems]
    assert [("the proxy itself listens" in text) for text in said] == ([True] if here else [])
