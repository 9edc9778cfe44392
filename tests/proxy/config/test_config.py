"""The configuration: its layers, its errors, and that the example names every key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from wellspoken.adapters.requests.caps import DANGEROUS, Caps
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.engine_keys import LLAMACPP, VLLM
from wellspoken.proxy.config.tables import (
    Auth,
    AuthClient,
    Backend,
    Engine,
    Health,
    Limits,
    Log,
    Server,
    Store,
    Timeouts,
    Tls,
    Traces,
)
from wellspoken.proxy.config.values import ConfigError, normal_url, parse_listen, read_key
from wellspoken.proxy.lifecycle.build import build

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"
ONE = {"backend": [{"url": "http://localhost:8000"}]}


def write(folder: Path, text: str) -> Path:
    """Return a configuration file with this text."""
    file = folder / "wellspoken.toml"
    file.write_text(text)
    return file


async def test_the_example_is_a_configuration() -> None:
    config = load(EXAMPLE, environ={})
    assert [backend.name for backend in config.backend] == ["vllm", "llamacpp"]
    service = build(config)
    assert service.state.router.find("gpt-4o").servers[0].model_for("gpt-4o") == "llama-3.1-8b"


@pytest.mark.parametrize(("kind", "alien"), [("llamacpp", VLLM), ("vllm", LLAMACPP)])
def test_the_examples_comments_are_a_configuration_too(
    tmp_path: Path, kind: str, alien: dict[str, str]
) -> None:
    """Uncommented, the lines that cannot be active together are valid keys as well."""
    lines = EXAMPLE.read_text().splitlines()
    key = re.compile(r"# (\[engine\]|[a-z_]+ = .*)")
    active = [found[1] if (found := key.fullmatch(line)) else line for line in lines]
    active = [line for line in active if line.partition(" =")[0] not in alien]
    text = "\n".join(active).replace('kind = "llamacpp"', f'kind = "{kind}"')
    text = text.replace('url = "http://localhost:8000"', 'url = "https://localhost:8000"')
    config = load(write(tmp_path, text), environ={})
    assert config.engine is not msgspec.UNSET and config.engine.kind == kind
    assert config.backend[1].key == "env:BACKEND_KEY"
    assert config.store.url is not None
    shown = {"kind", "model", "alias", "chat_template", "mmproj", "arguments", "environment"}
    shown |= {"inherit", "tokenizer", "caps"}
    defaults = Engine(kind="vllm", model="m")
    for name in set(Engine.__struct_fields__) - shown - {"endpoints", "forward_headers"}:
        assert getattr(config.engine, name) == getattr(defaults, name), name


TABLES = [
    Server,
    Tls,
    Timeouts,
    Limits,
    Health,
    Auth,
    AuthClient,
    Store,
    Log,
    Traces,
    Backend,
    Engine,
    Caps,
]


@pytest.mark.parametrize("kind", TABLES)
def test_the_example_names_every_key(kind: type[msgspec.Struct]) -> None:
    text = EXAMPLE.read_text()
    for field in set(kind.__struct_fields__) - {"client"}:  # a table
        assert re.search(rf"^(# +)?{field} = ", text, re.MULTILINE), field


def test_the_example_shows_the_defaults() -> None:
    raw = tomllib.loads(EXAMPLE.read_text())
    config = load(EXAMPLE, environ={})
    sections = (Server, Tls, Timeouts, Limits, Health, Auth, Store, Log, Traces)
    for section, kind in ((each.__name__.lower(), each) for each in sections):
        assert raw[section] and getattr(config, section) == kind(), section
    assert config.backend[0].caps == Caps()
    assert config.backend[0].vendor == Backend(url="").vendor


def test_the_example_names_the_keys_that_are_kept_back() -> None:
    for name in DANGEROUS:
        assert f'"{name}"' in EXAMPLE.read_text(), name


def test_layers(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "[server]\nlisten = '127.0.0.1:1'\nhosts = ['a']\ndrain_delay = 1\n"
        "[timeouts]\nconnect = 1\n[[backend]]\nurl = 'localhost:9'\n",
    )
    environ = {
        "WELLSPOKEN_LISTEN": "127.0.0.1:2",
        "WELLSPOKEN_HOSTS": "b, c",
        "WELLSPOKEN_TIMEOUTS_CONNECT": "2.5",
        "WELLSPOKEN_LIMITS_BODY": "77",
        "WELLSPOKEN_PORT": "tcp://10.0.0.1:80",
    }
    config = load(file, {"server": {"listen": "127.0.0.1:3"}}, environ)
    assert config.server == Server(listen="127.0.0.1:3", hosts=("b", "c"), drain_delay=1.0)
    assert config.timeouts.connect == 2.5
    assert config.limits.body == 77
    assert load(file, None, environ).server.listen == "127.0.0.1:2"
    assert load(file, None, {}).server.listen == "127.0.0.1:1"
    assert load(None, ONE, {}).server.listen == "127.0.0.1:8010"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[sever]\n", "sever: unknown key. Did you mean server?"),
        ("[server]\nlistn = 1\n", "server.listn: unknown key. Did you mean listen?"),
        ("[server]\nzzz = 1\n", "Known here: admin, cors"),
        ("[[backend]]\nurl = 'x'\n[[backend]]\nadaptr = 'x'\n", "backend[1].adaptr: unknown key."),
        ("[engine]\nmodle = 'x'\n", "engine.modle: unknown key. Did you mean model?"),
        ("[engine]\nkind = 'llamacpp'\n", "engine"),
        ("[engine]\nkind = 'other'\nmodel = 'x'\n", "engine.kind"),
        ("server = 1\n", "server"),
        ("[server]\nlisten = 5\n", "server.listen"),
        ("[server]\nlisten = 'x:y'\n", "listen"),
        ("[timeouts]\nconnect = 0\n", "timeouts.connect"),
        ("[limits]\nbody = 'big'\n", "limits.body"),
        ("backend = 1\n", "backend"),
        (
            "[backend]\nurl = 'localhost:9'\n",
            "wellspoken.toml:1:2: backend: there may be several. Write [[backend]],",
        ),
        ("[[backend]]\nname = 'x'\n", "url"),
        ("", "no backend"),
        ("backend = []\n", "no backend"),
        (
            "[[server]]\nlisten = 'localhost:9'\n[[backend]]\nurl = 'x'\n",
            "wellspoken.toml:1:3: server: there is one alone. Write [server], in one bracket.",
        ),
        (
            "[[backend]]\nurl = 'x'\n[[backend.caps]]\n",
            "backend[0].caps: there is one alone. Write [backend.caps], in one bracket.",
        ),
        ("[[backend]]\nurl = 'x'\nkey = 'sk-secret'\n", "backend[0]: key: write env:NAME"),
        ("[[backend]]\nurl = 'x'\nkey = 'env:A'\nauth = 'pass'\n", "exclude each other"),
        ("[[backend]]\nurl = 'x'\nauth = 'some'\n", "backend[0].auth"),
        ("[[backend]]\nurl = 'ftp://x'\n", "no http(s) URL"),
        ("[[backend]]\nurl = 'http://u:pw@x'\n", "credentials"),
        ("[[backend]]\nurl = 'x'\nvendor = 'drop'\n", "backend[0].vendor"),
        ("[[backend]]\nurl = 'x'\nui = true\nvendor = 'reject'\n", "ui = true needs vendor"),
        ("[[backend]]\nurl = 'x'\n[backend.caps]\nn = 0\n", "backend[0].caps.n"),
        ("[[backend]]\nurl = 'x'\n[backend.caps]\nn_probs = true\n", "backend[0].caps.n_probs"),
        ("[[backend]]\nurl = 'x'\n[backend.caps]\nn_prob = 1\n", "caps.n_prob: unknown key. Did"),
        ("[[backend]]\nurl = 'x'\ncaps = 5\n", "backend[0].caps"),
        (
            "[[backend]]\nurl = 'x'\n[backend.caps]\nallow = ['chat_templ']\n",
            "backend[0].caps.allow: 'chat_templ' is none of the keys that are kept back, so take "
            "it out. Did you mean chat_template?",
        ),
        ("[engine]\nkind = 'llamacpp'\nmodel = 'x'\n[engine.caps]\nallow = ['x']\n", "engine.caps"),
        ("[[backend]]\nurl = 'x'\nrecover = 'thinking'\n", "backend[0].recover: Expected `array`"),
        (
            "[[backend]]\nurl = 'x'\nrecover = ['tool_calls', 'thinkin']\n",
            "backend[0].recover[1]: 'thinkin' is none that there is. Did you mean \"thinking\"?",
        ),
        ("[[backend]]\nurl = 'x'\n[[backend]]\nurl = 'y'\n", "two are named 'default'"),
        ("[[backend]]\nurl = 'x'\n[[backend]]\nname = 'b'\nurl = 'y'\n", "needs models"),
        ("x = \n", "is not TOML"),
    ],
)
def test_errors_name_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text), environ={})
    message = str(caught.value)
    assert words in message
    assert "sk-secret" not in message and "pw" not in message


def test_of_several_errors_the_first_is_told_and_how_many_there_are(tmp_path: Path) -> None:
    file = write(tmp_path, "[backend]\nurl = 'ftp://x'\nadaptr = 1\n[server]\nlistn = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert str(caught.value) == (
        f"{file}:1:2: backend: there may be several. Write [[backend]], in two brackets. "
        f"And 3 more: wellspoken check {file}"
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "nothing.toml", environ={})


def test_a_variable_of_the_wrong_type() -> None:
    with pytest.raises(ConfigError, match="WELLSPOKEN_TIMEOUTS_CONNECT='soon'"):
        load(None, ONE, {"WELLSPOKEN_TIMEOUTS_CONNECT": "soon"})


async def test_an_unknown_adapter_is_refused_with_the_nearest_name() -> None:
    backend = [{"url": "x", "adapter": "vlm"}]
    with pytest.raises(ConfigError, match=r"backend\[0\]\.adapter: .*Did you mean 'vllm'"):
        build(load(None, {"backend": backend}, {}))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000"),
        ("https://Host.example/llm/v1", "https://host.example/llm"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("10.0.0.1", "http://10.0.0.1"),
        ("http://localhost:8000/v1/chat/completions", "http://localhost:8000"),
        ("localhost:8000/chat/completions/", "http://localhost:8000"),
        ("https://host/llm/v1/models", "https://host/llm"),
        ("https://host/models", "https://host/models"),
        ("unix:/v1/chat/completions", "unix:/v1/chat/completions"),
        ("unix:/run/api.sock", "unix:/run/api.sock"),
        (" unix:///run/api.sock ", "unix:/run/api.sock"),
        ("UNIX:/run/a b#?%20:80/v1/", "unix:/run/a b#?%20:80/v1"),
        ("unix:/" + 106 * "x", "unix:/" + 106 * "x"),
    ],
)
def test_urls_are_understood(text: str, url: str) -> None:
    assert normal_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        *("", "http://", "http://x:y", "http://x?a=b", "http://x/#f", "http://x/ y", "ftp:/x"),
        *("http://llm..local:8000", "http://.llm", "http://" + 64 * "x", "http://a\u3002\u3002b"),
    ],
)
def test_what_is_no_url(text: str) -> None:
    with pytest.raises(ConfigError, match="Write it like"):
        normal_url(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unix:api.sock", "'unix:api.sock' has no whole path. Write it like unix:{here}/api.sock."),
        ("unix:~/api.sock", "Write it like unix:{home}/api.sock."),
        ("unix://run/api.sock", "'unix://run/api.sock' has no whole path. Write it like unix:/"),
        ("unix:", "Write it like unix:{here}/api.sock."),
        ("unix:///", "Write it like unix:{here}/api.sock."),
        ("unix:/a\nb", "cannot be shown"),
        ("unix:/" + 107 * "x", "has 108 bytes, but the system takes 107 at most"),
        ("unix:/" + 53 * "ö" + "xx", "has 109 bytes"),
    ],
)
def test_what_is_no_socket(text: str, words: str) -> None:
    wanted = words.format(here=Path.cwd(), home=Path.home())
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        normal_url(text)
    with pytest.raises(ConfigError, match=r"^backend\[0\]: url: "):
        load(None, {"backend": [{"url": text}]}, {})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8010", ("127.0.0.1", 8010)),
        ("[::1]:80", ("::1", 80)),
        (":8010", ("0.0.0.0", 8010)),
        ("8010", ("127.0.0.1", 8010)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses_are_understood(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", "x", "x:", "x:99999", "x:-1", "x:1x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="Write it like"):
        parse_listen(text)


def test_keys_are_read_from_where_they_are(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert read_key(f"file:{file}") == "secret"
    assert read_key("env:K", {"K": " secret "}) == "secret"


@pytest.mark.parametrize(
    ("key", "environ"),
    [
        ("env:K", {}),
        ("env:K", {"K": " "}),
        ("env:K", {"K": "a\nb"}),
        ("env:K", {"K": "schlüssel"}),
        ("file:/nowhere/key", {}),
        ("file:~no-such-user/key", {}),
        ("env:", {}),
        ("sk-secret", {}),
    ],
)
def test_keys_that_cannot_be_read(key: str, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read_key(key, environ)
    assert not any(
        value.strip() in str(caught.value) for value in environ.values() if value.strip()
    )
    assert "sk-secret" not in str(caught.value)


def test_the_structs_refuse_unknown_keys() -> None:
    raw: dict[str, Any] = {"server": {"x": 1}}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(raw, Config)
