"""`wellspoken config show` and `schema`: each value's origin, no secret, a schema that fits."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tests.proxy.config.test_config_check import BAD, EXAMPLE
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import load
from wellspoken.proxy.config.json_schema import schema
from wellspoken.proxy.config.secrets import HIDDEN
from wellspoken.proxy.config.show import toml, visible

FILE = """\
auth = "none"
[timeouts]
connect = 1
probe = 2.5
[[backend]]
url = "http://x"
aliases = { "gpt-4o" = "m", "a b" = 'c"d' }
[backend.caps]
n = 3
[[backend]]
name = "b"
url = "http://y"
models = ["m2"]
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_text(FILE)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what `wellspoken config show` prints."""
    assert main(["config", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_each_value_has_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLSPOKEN_TIMEOUTS_PROBE", "7")
    monkeypatch.setenv("WELLSPOKEN_HOSTS", "a, b")
    flags = ["--listen", "127.0.0.1:9", "--log-level", "debug"]
    found = json.loads(shown(capsys, "--json", "w.toml", *flags))
    told = {
        each["key"]: (each["value"], each["source"], each["name"], each["line"], each["column"])
        for each in found
    }
    assert told["server.listen"] == ("127.0.0.1:9", "flag", "--listen", None, None)
    assert told["log.level"] == ("debug", "flag", "--log-level", None, None)
    assert told["timeouts.probe"] == (7.0, "variable", "WELLSPOKEN_TIMEOUTS_PROBE", None, None)
    assert told["server.hosts"] == (["a", "b"], "variable", "WELLSPOKEN_HOSTS", None, None)
    assert told["timeouts.connect"] == (1.0, "file", "w.toml", 3, 11)
    assert told["auth"] == ("none", "file", "w.toml", 1, 8)
    assert told["backend[0].caps.n"] == (3, "file", "w.toml", 9, 5)
    assert told["backend[0].caps.best_of"] == (128, "default", None, None, None)
    assert told["backend[0].name"] == ("default", "default", None, None, None)
    assert told["backend[1].models"] == (["m2"], "file", "w.toml", 13, 10)
    assert told["store.path"] == (None, "default", None, None, None)
    lines = shown(capsys, "w.toml", *flags).splitlines()
    assert 'listen = "127.0.0.1:9"' in lines[3] and lines[3].endswith("# --listen")
    assert any(line.startswith("n = 3 ") and line.endswith(" # w.toml:9") for line in lines)


@pytest.mark.parametrize("file", ["w.toml", str(EXAMPLE), "engine.toml", "llama.toml"])
def test_what_is_shown_can_be_loaded(capsys: pytest.CaptureFixture[str], file: str) -> None:
    Path("engine.toml").write_text(
        "[engine]\nkind = 'vllm'\nmodel = 'a/b'\nidle_unload = '15m'\narguments = ['-tp', '2']\n"
        "environment = { HF_TOKEN = 'env:T' }\n"
    )
    Path("llama.toml").write_text("[engine]\nkind = 'llamacpp'\nmodel = 'm.gguf'\nthreads = 2\n")
    Path("again.toml").write_text(shown(capsys, file))
    assert load(Path("again.toml"), environ={}) == load(Path(file), environ={})


def test_secrets_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    Path("w.toml").write_text(
        "[store]\nurl = 'postgresql://u:canary1@db/d?password=canary2&sslmode=require'\n"
        "[engine]\nkind = 'vllm'\nmodel = 'a/b'\n"
        "arguments = ['--hf-token', 'canary4', '--x-key=canary5', '-tp', '2']\n"
        "environment = { HF_TOKEN = 'canary6', OTHER = 'env:NAME' }\n"
    )
    for flag in ([], ["--json"]):
        said = shown(capsys, "w.toml", *flag)
        assert "canary" not in said
        for kept in ("u:[hidden]@db/d", "sslmode=require", "env:NAME"):
            assert kept in said
        assert said.count(HIDDEN) == 5


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("-tp 2", "-tp 2"),
        (
            "--tokenizer a/b --max-num-batched-tokens 8",
            "--tokenizer a/b --max-num-batched-tokens 8",
        ),
        ("--api-keys canary --apikey=canary", f"--api-keys {HIDDEN} --apikey={HIDDEN}"),
        ('--conf {"token":"canary"}', f"--conf {HIDDEN}"),
        ('--conf={"api_key":"canary"}', f"--conf={HIDDEN}"),
        ("--env HF_TOKEN=canary", f"--env {HIDDEN}"),
    ],
)
def test_which_arguments_are_secret(given: str, seen: str) -> None:
    assert visible(("engine", "arguments"), tuple(given.split())) == seen.split()


@pytest.mark.parametrize("at", ["@", "%40"])
def test_a_password_in_an_inner_url_is_hidden(at: str) -> None:
    url = f"postgresql://b/p?service=https://k:canary{at}m:9000&region=eu"
    assert visible(("store", "url"), url) == f"postgresql://b/p?service={HIDDEN}&region=eu"


def test_a_configuration_that_cannot_be_used_is_not_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("w.toml").write_text(BAD)
    assert main(["config", "show", "w.toml"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("wellspoken: w.toml:")
    assert said.err.endswith("more: wellspoken check w.toml\n")


@pytest.mark.parametrize(
    "value", ['a"b\\', "\x7f\n\u2028é", True, 1, 1.5, 1e22, [], ["x", 2], {}, {"a b": {"c": "'"}}]
)
def test_values_as_toml(value: Any) -> None:
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}


def test_the_schema_fits_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    made = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(made)
    assert made == schema()
    judge = Draft202012Validator(made)
    assert [*judge.iter_errors(tomllib.loads(EXAMPLE.read_text()))] == []
    assert [*judge.iter_errors(tomllib.loads(FILE))] == []


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("[server]\nlistn = 'x'", False),
        ("[server]\nworkers = 0", False),
        ("[log]\nlevel = 'inf'", False),
        ("[[backend]]\nname = 'x'", False),
        ("[[backend]]\nurl = 'x'\nkey = 5", False),
        ("auth = 'sk-key'", False),
        ("[engine]\nkind = 'vllm'", False),
        ("[engine]\nkind = 'vllm'\nmodel = 'm'\ngrace = 'soon'", False),
        ("[engine]\nkind = 'vllm'\nmodel = 'm'\ngrace = '1h30m'", True),
        ("[engine]\nkind = 'vllm'\nmodel = 'm'\ngrace = 1.5", True),
        ("[[backend]]\nurl = 'x'\nkey = 'env:K'", True),
        ("[auth]\nkeys = ['env:K']\n[[backend]]\nurl = 'x'", True),
    ],
)
def test_schema_and_types_agree(text: str, good: bool) -> None:
    raw = tomllib.loads(text)
    if not raw.keys() & {"backend", "engine"}:
        raw["backend"] = [{"url": "http://x"}]
    assert Draft202012Validator(schema()).is_valid(raw) == good
    try:
        load(None, raw, {})
    except Exception as error:
        assert not good, error
    else:
        assert good


def test_no_default_is_null_and_every_key_is_there() -> None:
    made = schema()
    assert "null" not in msgspec.json.encode(made).decode()
    assert set(made["$defs"]["Server"]["properties"]) >= {"listen", "workers", "watch"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config", "shw"], "Did you mean show?"),
        (["config", "schemas"], "Did you mean schema?"),
        (["check", "--jsn", "w.toml"], "unknown: --jsn. Did you mean --json?"),
        (["check", "w.toml", "--config", "w.toml"], "FILE and --config FILE mean the same"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_config_alone_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    assert "examples:" in capsys.readouterr().out
