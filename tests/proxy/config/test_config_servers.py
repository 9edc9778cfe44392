"""Several servers of one model: a list of URLs, several tables with one model, and fallbacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config import examine, load
from wellspoken.proxy.config.json_schema import schema
from wellspoken.proxy.config.problems import path_text
from wellspoken.proxy.config.rules.pool_rules import names_of_servers
from wellspoken.proxy.config.values import ConfigError, find_places

HEAD = "[[backend]]\nname = 'a'\nmodels = ['m']\nurl = "
LIST = f"{HEAD}['http://a:1', 'http://b:1/v1']\n"
SECOND = "[[backend]]\nname = 'b'\nmodels = ['m', 'n']\nurl = 'http://c:1'\n"


def examined(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """Return all that is wrong with a file of this text, behind its line and column."""
    file = folder / "w.toml"
    file.write_text(text)
    found = examine(file, {}, environ or {})
    return [found.describe(problem).removeprefix(f"{file}:") for problem in found.problems]


def warned(capsys: pytest.CaptureFixture[str], folder: Path, text: str) -> list[dict[str, Any]]:
    """Return what `wellspoken check` warns of."""
    file = folder / "w.toml"
    file.write_text(text)
    assert main(["check", "--json", "--file-only", str(file)]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return found


def test_a_list_of_urls_and_two_tables_of_a_model_are_good(tmp_path: Path) -> None:
    assert examined(tmp_path, LIST + SECOND) == []
    one, two = load(tmp_path / "w.toml", environ={}).backend
    assert one.urls == ("http://a:1", "http://b:1/v1") and two.urls == ("http://c:1",)
    assert (names_of_servers(one), names_of_servers(two)) == (("a/1", "a/2"), ("b",))
    assert set(find_places(one)) == {"http://a:1", "http://b:1"}


@pytest.mark.parametrize(
    ("urls", "place", "words"),
    [
        ("['http://a', 'ftp://b']", "4:20", "backend[0].url[1]: 'ftp://b' is no http(s) URL"),
        ("['http://a', 5]", "4:20", "backend[0].url[1]: Expected `str`, got `int`. Put it in"),
        ("[]", "4:7", "backend[0].url: Expected `array` of length >= 1"),
        ("['x', 'unix:y']", "4:13", "backend[0].url[1]: 'unix:y' has no whole path"),
        ("['http://u:pw@x']", "4:8", "backend[0].url[0]: it holds credentials"),
        ("['a:1', 'http://a:1/v1']", "4:15", "backend[0].url[1]: this is url[0] once more."),
        ("['a', '127.0.0.1:8010']", "4:13", "backend[0].url[1]: this is where the proxy itself"),
        ("['http://a']\ntls.ca = 'x'", "5:1", "backend[0].tls: none of the urls is an https://"),
    ],
)
def test_each_url_is_checked_at_its_place(
    tmp_path: Path, urls: str, place: str, words: str
) -> None:
    (said,) = examined(tmp_path, f"{HEAD}{urls}\n")
    assert said.startswith(f"{place}: {words}")
    assert "pw" not in said


def test_a_list_may_mix_http_and_https(tmp_path: Path) -> None:
    assert examined(tmp_path, f"{HEAD}['http://a', 'https://a']\ntls.ca = 'x'\n") == []


def test_an_endpoint_is_taken_off_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = warned(capsys, tmp_path, f"{HEAD}['http://a', 'http://b/v1/models']\n")
    assert (found["key"], found["line"], found["column"]) == ("backend[0].url[1]", 4, 20)
    assert found["message"].startswith("backend[0].url[1]: /v1/models is an endpoint")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", "6:8: backend: two are named 'a'. Give each its own name."),
        (
            "a/2",
            "6:8: backend[1].name: 'a/2' is a server of backend[0] ('a') too. Choose another.",
        ),
        ("a/3", None),
    ],
)
def test_a_servers_name_is_nobody_elses(tmp_path: Path, name: str, said: str | None) -> None:
    other = f"[[backend]]\nname = '{name}'\nmodels = ['n']\nurl = 'c'\n"
    assert examined(tmp_path, LIST + other) == ([said] if said else [])


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("affinity = 'prefix'", "affinity = 'none'", 'affinity: it is "none" here and "prefix" in'),
        ("retry = 'unstarted'", "retry = 'unsent'", 'retry: it is "unsent" here and "unstarted"'),
        ("fallback = ['n']", "fallback = []", 'fallback: it is [] here and ["n"] in backend[0]'),
        ("", "affinity = 'header:x-a'", 'affinity: it is "header:x-a" here and "none" in backend'),
    ],
)
def test_what_a_models_servers_share_is_the_same_in_all_tables(
    tmp_path: Path, first: str, second: str, said: str
) -> None:
    other = SECOND.replace("'m', 'n'", "'m', 'k'") + second + "\n"
    third = "[[backend]]\nname = 'c'\nmodels = ['n']\nurl = 'http://d'\n"
    (found,) = examined(tmp_path, f"{LIST}{first}\n{other}{third}")
    line = (LIST + first + "\n" + other).splitlines().index(second) + 1
    assert found.startswith(f"{line}:{second.index('=') + 3}: backend[1].{said}")
    assert "both have the model 'm'" in found
    apart = other.replace("'m', ", "")  # without a model in common each may say what it likes
    assert examined(tmp_path, f"{LIST}{first}\n{apart}{third}") == []


def test_a_difference_is_told_once_however_many_models_there_are(tmp_path: Path) -> None:
    text = (LIST + SECOND + "affinity = 'prefix'\n").replace("['m']", "['m', 'n', 'k']")
    assert len(examined(tmp_path, text)) == 1


@pytest.mark.parametrize(
    ("fallback", "said"),
    [
        ("['b']", None),
        ("['n']", None),
        ("['gpt']", None),
        ("['nn']", "no model and no backend is called 'nn'. Did you mean n?"),
        ("['zzzz']", "no model and no backend is called 'zzzz'. Known here: a, b, gpt, m, n."),
        ("['a']", "the servers of 'a' are those that a request has been to already, so this"),
        ("['m']", "the servers of 'm' are those that a request has been to already, so this"),
    ],
)
def test_a_fallback_is_something_else_that_there_is(
    tmp_path: Path, fallback: str, said: str | None
) -> None:
    other = SECOND.replace("'m', ", "") + "aliases = { gpt = 'n' }\n"
    found = examined(tmp_path, f"{LIST}fallback = {fallback}\n{other}")
    assert len(found) == (said is not None)
    assert all(each.startswith(f"5:13: backend[0].fallback[0]: {said}") for each in found)


def test_a_fallback_answers_responses_as_its_model_does(tmp_path: Path) -> None:
    other = "[[backend]]\nname = 'b'\nurl = 'http://b'\nmodels = ['n']\nresponses = 'pass'\n"
    [found] = examined(tmp_path, f"{LIST}fallback = ['n']\n{other}")
    assert found.startswith("5:13: backend[0].fallback[0]: 'n' has another word for responses")
    assert not examined(tmp_path, f"{LIST}fallback = ['n']\nresponses = 'pass'\n{other}")


def test_a_fallback_stands_there_once_and_a_sole_backend_has_none(tmp_path: Path) -> None:
    other = SECOND.replace("'m', ", "")
    (found,) = examined(tmp_path, f"{LIST}fallback = ['n', 'n']\n{other}")
    assert found.startswith("5:18: backend[0].fallback[1]: 'n' stands there twice.")
    (found,) = examined(tmp_path, "[[backend]]\nname = 'a'\nurl = 'x'\nfallback = ['a']\n")
    assert "so this would do nothing" in found


def test_a_fallback_that_helps_one_of_its_models_is_good(tmp_path: Path) -> None:
    both = "[[backend]]\nname = 'a'\nmodels = ['m', 'k']\nurl = 'x'\nfallback = ['n']\n"
    assert examined(tmp_path, both + SECOND + "fallback = ['n']\n") == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("affinity = 'session'", '\'session\' is none that there is. Write "none", "prefix" or'),
        ("affinity = 'header:'", '\'header:\' is none that there is. Write "none", "prefix" or'),
        ("affinity = 'header:a b'", "'header:a b' is none that there is."),
        ("retry = 'always'", '\'always\' is none that there is. Write "unsent" or "unstarted".'),
        (
            "health_path = 'health'",
            "'health' is none that there is. Write a path, like \"/health\"",
        ),
        ("weight = -1", "Expected `float` >= 0"),
        ("weight = inf", "Expected `float` <= "),
        ("weight = 1e-300", "1e-300 is as good as none. Write 0, or at least 0.001."),
    ],
)
def test_values_that_there_are_not(tmp_path: Path, line: str, said: str) -> None:
    (found,) = examined(tmp_path, f"{LIST}{line}\n")
    key, _, value = line.partition(" = ")
    assert found.startswith(f"5:{len(key) + 4}: backend[0].{key}: {said}")
    assert value


def test_weights_that_are_all_0_are_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = warned(capsys, tmp_path, f"{LIST}weight = 0\n{SECOND}weight = 0\n")
    assert (found["severity"], found["key"], found["line"]) == ("warning", "backend[1].weight", 10)
    assert "every server of 'm' has the weight 0" in found["message"]
    apart = SECOND.replace("'m', ", "")
    assert len(warned(capsys, tmp_path, f"{LIST}weight = 0\n{apart}weight = 0\n")) == 2
    assert warned(capsys, tmp_path, f"{LIST}weight = 0\n{SECOND}") == []


def test_one_server_in_two_tables_of_a_model_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = SECOND.replace("http://c:1", "b:1")
    (found,) = warned(capsys, tmp_path, LIST + same)
    assert (found["severity"], found["key"], found["line"]) == ("warning", "backend[1].url", 8)
    assert "backend[0] has this server for the model 'm' too" in found["message"]
    # Of one server two of its models may be meant, a canary of another adapter.
    assert warned(capsys, tmp_path, f"{LIST}{same}upstream_model = 'lora'\n") == []
    assert warned(capsys, tmp_path, LIST + same.replace("'m', ", "")) == []


def test_what_is_shown_can_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        f"{LIST}fallback = ['n']\naffinity = 'prefix'\n[health]\ninterval = '2s'\n"
        + SECOND.replace("'m', ", "")
    )
    assert main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert f'url = ["http://a:1", "http://b:1/v1"]    # {file}:4' in shown
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert load(again, environ={}) == load(file, environ={})


def test_variables_set_health(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(LIST)
    assert load(file, environ={"WELLSPOKEN_HEALTH_INTERVAL": "2s"}).health.interval == 2.0
    with pytest.raises(ConfigError, match="WELLSPOKEN_HEALTH_FAILURES='no': Write a whole number"):
        load(file, environ={"WELLSPOKEN_HEALTH_FAILURES": "no"})


def test_the_schema_takes_one_url_and_a_list() -> None:
    kinds = schema()["$defs"]["Backend"]["properties"]["url"]["anyOf"]
    assert [kind["type"] for kind in kinds] == ["string", "array"]
    assert path_text(("backend", 0, "url", 1)) == "backend[0].url[1]"
