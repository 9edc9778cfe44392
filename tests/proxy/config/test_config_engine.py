"""The table [engine]: its keys for each kind, lengths of time, variables, and flags it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from wellspoken.proxy.config import load
from wellspoken.proxy.config.engine_keys import LLAMACPP, VLLM, names_of_models
from wellspoken.proxy.config.tables import Engine
from wellspoken.proxy.config.values import ConfigError

GGUF = {"kind": "llamacpp", "model": "folder/m.gguf"}
HUB = {"kind": "vllm", "model": "ORG/NAME"}


def engine(table: dict[str, Any], environ: dict[str, str] | None = None, **more: Any) -> Engine:
    """Return the engine of a configuration that has this table alone."""
    found = load(None, {"engine": {**table, **more}}, environ if environ is not None else {}).engine
    assert found is not msgspec.UNSET
    return found


def refused(table: dict[str, Any], **more: Any) -> str:
    """Return what is said of a table that is refused."""
    with pytest.raises(ConfigError) as caught:
        engine(table, **more)
    return str(caught.value)


def test_what_is_not_said_has_its_default() -> None:
    found = engine(GGUF)
    assert found == Engine(kind="llamacpp", model="folder/m.gguf")
    assert (found.start_timeout, found.idle_unload, found.restarts) == (0.0, 0.0, 5)


@pytest.mark.parametrize("key", LLAMACPP)
def test_a_key_of_llamacpp_is_refused_with_vllm_even_at_its_default(key: str) -> None:
    said = refused(HUB, **{key: getattr(engine(GGUF), key)})
    assert said.startswith(f'engine.{key}: only kind = "llamacpp" has this. For vLLM ')
    engine(GGUF, **{key: getattr(engine(GGUF), key)})


@pytest.mark.parametrize("key", VLLM)
def test_a_key_of_vllm_is_refused_with_llamacpp(key: str) -> None:
    said = refused(GGUF, **{key: getattr(engine(HUB), key)})
    assert said.startswith(f'engine.{key}: only kind = "vllm" has this. For llama.cpp ')
    engine(HUB, **{key: getattr(engine(HUB), key)})


def test_numbers_keep_their_bounds() -> None:
    assert engine(GGUF, idle_unload=900).idle_unload == 900.0
    for key, value in (("grace", -1), ("health_timeout", 0), ("restarts", 0), ("parallel", 0)):
        assert f"engine.{key}" in refused(GGUF, **{key: value})
    assert "engine.health_timeout" in refused(GGUF, health_timeout="0s")


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text('[engine]\nkind = "vllm"\nmodel = "a/b"\narguments = ["-tp", "2"]\n')
    environ = {
        "WELLSPOKEN_ENGINE_MODEL": "c/d",
        "WELLSPOKEN_ENGINE_ARGUMENTS": "--max-model-len 512 --hf-overrides '{\"a\": 1}'",
        "WELLSPOKEN_ENGINE_INHERIT": "AWS_*, NAME",
        "WELLSPOKEN_ENGINE_QUEUE": "3",
        "WELLSPOKEN_ENGINE_PORT": "tcp://10.0.0.1:80",  # a Kubernetes service of that name
    }
    found = load(file, {"engine": {"alias": "x"}}, environ).engine
    assert found is not msgspec.UNSET
    assert (found.model, found.alias, found.queue) == ("c/d", "x", 3)
    assert found.arguments == ("--max-model-len", "512", "--hf-overrides", '{"a": 1}')
    assert found.inherit == ("AWS_*", "NAME")


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("WELLSPOKEN_ENGINE_QUEUE", "many", "WELLSPOKEN_ENGINE_QUEUE='many': Write a whole"),
        ("WELLSPOKEN_ENGINE_GRACE", "soon", "WELLSPOKEN_ENGINE_GRACE='soon': 'soon' is no length"),
        ("WELLSPOKEN_ENGINE_ARGUMENTS", "'a", "No closing quotation. Correct it. Or unset it."),
        ("WELLSPOKEN_ENGINE_CONTEXT", "5", 'engine.context: only kind = "llamacpp" has this.'),
    ],
)
def test_variables_that_cannot_be_used(variable: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"engine": HUB}, {variable: text})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--uds", "/x"], "--uds cannot be among vLLM's arguments: "),
        (["-tp", "2", "--port=1"], "--port cannot be"),
        (["--hos", "0.0.0.0"], "--hos (the beginning of --host) cannot be"),
        (["--api_key", "sk-secret"], "the keys of clients go into `keys`"),
        (["--ssl_certfile=c"], "TLS is for"),
        (["--shutdown-timeout", "5"], "drain_timeout"),
        (["--config", "c.yaml"], "write what is in that file as arguments"),
    ],
)
def test_flags_that_are_the_proxys_own(arguments: list[str], words: str) -> None:
    """Which ones these are, tests/engine says of engine/vllm/vllm_arguments.py."""
    said = refused(HUB, arguments=arguments)
    assert said.startswith("engine.arguments: --")
    assert words in said and said.endswith("Take it out.")
    assert "secret" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len", "8192", "-tp", "8"],
        ["--model-impl", "transformers", "--configuration-x", "--hostname-x"],
        ["--data-parallel-size", "2", "--enable-auto-tool-choice"],
        ["--api-server-count=2", "-O3", "--hf-overrides", "{}"],
        ["--compilation-config.level", "3"],
        ["--served-model-name", "a", "b"],
    ],
)
def test_flags_that_pass(arguments: list[str]) -> None:
    assert engine(HUB, arguments=arguments).arguments == tuple(arguments)


def test_what_is_no_flag_of_vllm() -> None:
    assert "'ORG/NAME' is no flag. The model is --model's" in refused(HUB, arguments=["ORG/NAME"])
    assert "holds a NUL" in refused(HUB, arguments=["-x", "a\0"])
    names = ["--served_model_name=a"]
    assert "--served-model-name and alias" in refused(HUB, arguments=names, alias="b")
    assert engine(HUB, arguments=names).alias is None


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (GGUF, ("m",)),
        ({**GGUF, "alias": "mine"}, ("mine",)),
        (HUB, ("ORG/NAME",)),
        ({**HUB, "arguments": ["--served-model-name", "a", "b", "-tp", "2"]}, ("a", "b")),
        ({**HUB, "arguments": ["--served_model_name=a"]}, ("a",)),
        ({**HUB, "arguments": ["--served-model-name"]}, ("ORG/NAME",)),
    ],
)
def test_the_models_names_before_it_runs(table: dict[str, Any], names: tuple[str, ...]) -> None:
    assert names_of_models(engine(table)) == names


def test_what_servers_of_one_model_share_holds_for_the_engine_too() -> None:
    backend = [{"url": "x", "models": ["m"], "affinity": "prefix", "weight": 0.5}]
    with pytest.raises(ConfigError, match=r'engine.affinity: it is "none" here and "prefix" in'):
        load(None, {"engine": GGUF, "backend": backend}, {})
    load(None, {"engine": {**GGUF, "affinity": "prefix", "weight": 2}, "backend": backend}, {})
    load(None, {"engine": {**GGUF, "alias": "n"}, "backend": backend}, {})


def test_a_variable_has_the_engines_fallback() -> None:
    environ = {"WELLSPOKEN_ENGINE_FALLBACK": "big, default", "WELLSPOKEN_ENGINE_WEIGHT": "0.5"}
    backend = [{"url": "x", "models": ["big"]}]
    found = load(None, {"engine": GGUF, "backend": backend}, environ).engine
    assert found is not msgspec.UNSET
    assert (found.fallback, found.weight) == (("big", "default"), 0.5)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("inherit", ["*"], "'*' is no variable's name. Write NAME or PREFIX_*."),
        ("inherit", ["A B"], "'A B' is no variable's name"),
        ("environment", {"A=B": "x"}, "'A=B' is no variable's name"),
        ("environment", {"VLLM_API_KEY": "sk-x"}, "vLLM would refuse the proxy"),
        ("inherit", ["VLLM_API_KEY"], "engine.inherit: with VLLM_API_KEY vLLM would refuse"),
        ("environment", {"A": "sk-x\0"}, "engine.environment.A: it holds a NUL"),
        ("environment", {"A": 1}, "engine.environment"),
        ("model", " ", "engine.model: it is empty"),
        ("kind", "tgi", "engine.kind: 'tgi' is none that there is. Write kind = "),
        ("model", "m" * 5000, "engine.model"),
        ("idle_unload", float("inf"), "engine.idle_unload: Expected `float` <= 1000000000"),
        ("grace", "99999999d", "engine.grace: Expected `float` <= 1000000000"),
    ],
)
def test_other_errors_name_the_key(key: str, value: Any, words: str) -> None:
    said = refused(HUB, **{key: value})
    assert words in said
    assert "sk-x" not in said


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"model": "m.gguf"}, 'engine.kind: it is missing. Write kind = "llamacpp" or "vllm"'),
        ({"kind": "llamacpp"}, "engine.model: it is missing. Name a .gguf file"),
        ({"kind": "vllm"}, "engine.model: it is missing. Name ORG/NAME"),
        ({**GGUF, "mmproj": ""}, "engine.mmproj: it is empty. Name a file, or leave it out."),
        ({**GGUF, "chat_template": " "}, "engine.chat_template: it is empty."),
        ({**GGUF, "parallel": 257}, "engine.parallel: Expected `int` <= 256"),
        *(
            ({**GGUF, key: 1 << 31}, f"engine.{key}: Expected `int` <= 2147483647")
            for key in ("context", "threads", "gpu_layers")
        ),
    ],
)
def test_what_is_missing_or_too_much_is_named(table: dict[str, Any], words: str) -> None:
    assert words in refused(table)


def test_a_variable_without_its_kind_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="WELLSPOKEN_ENGINE_KIND"):
        load(None, {"backend": [{"url": "x"}]}, {"WELLSPOKEN_ENGINE_MODEL": "a/b"})


def test_paths_may_be_long() -> None:
    """A snapshot in a Hugging Face cache on a mounted volume has more than 200 characters."""
    path = "/mnt/" + "models/" * 40 + "m.gguf"
    assert engine(GGUF, model=path).model == path
    assert engine(HUB, executable=path).executable == path


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--max-model-len 8192", 'Write "--max-model-len", "8192".'),
        ("--max-model-len\t8192 ", 'Write "--max-model-len", "8192'),
    ],
)
def test_a_flag_and_its_value_are_two_texts(argument: str, words: str) -> None:
    said = refused(HUB, arguments=["--enforce-eager", argument])
    assert said.startswith("engine.arguments: ") and "is one text" in said and words in said
    passing = ["--chat-template", "{{ x }} y", '--hf-overrides={"a": 1}', "--a=b c"]
    assert engine(HUB, arguments=passing).arguments == tuple(passing)
