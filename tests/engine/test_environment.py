"""What of the proxy's environment an engine gets."""

from __future__ import annotations

import pytest

from wellspoken.engine.environment import HARMFUL, NAMES, PREFIXES, pass_environment

PLAIN = {"PATH": "/bin", "HOME": "/root"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_named_variables_pass(name: str) -> None:
    assert pass_environment({name: "x"}, (), {}) == {name: "x"}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_variables_with_a_known_prefix_pass(prefix: str) -> None:
    assert pass_environment({f"{prefix}X": "x"}, (), {}) == {f"{prefix}X": "x"}


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "DATABASE_URL",
        "AWS_SECRET_ACCESS_KEY",
        "PROMETHEUS_MULTIPROC_DIR",
        "PYTHONSTARTUP",
        "PYTHONPATH",
        "LISTEN_FDS",
        "NOTIFY_SOCKET",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "WELLSPOKEN_DATABASE_URL",
        "path",
        "MY_PATH",
    ],
)
def test_others_do_not_pass(name: str) -> None:
    assert pass_environment({name: "x", **PLAIN}, (), {}) == PLAIN


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "VLLM_PORT",
        "VLLM_PORT_8000_TCP",
        "VLLM_SERVICE_HOST",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH",
    ],
)
def test_a_harmful_one_passes_only_by_its_exact_name(name: str) -> None:
    environ = {name: "x", **PLAIN}
    assert pass_environment(environ, (), {}) == PLAIN
    assert pass_environment(environ, ("VLLM_*", "*"), {}) == PLAIN
    assert pass_environment(environ, (name,), {}) == environ
    assert pass_environment(environ, (), {name: "y"}) == {name: "y", **PLAIN}


def test_each_harmful_pattern_is_one_that_a_prefix_would_let_pass() -> None:
    assert all(pattern.startswith(PREFIXES) for pattern in HARMFUL)


def test_inherited_names_and_prefixes_pass() -> None:
    environ = {"AWS_REGION": "eu", "AWS_PROFILE": "p", "MY_KEY": "k", "MY_KEYS": "ks"}
    assert pass_environment(environ, ("AWS_*",), {}) == {"AWS_REGION": "eu", "AWS_PROFILE": "p"}
    assert pass_environment(environ, ("MY_KEY",), {}) == {"MY_KEY": "k"}
    assert pass_environment(environ, ("*",), {}) == environ


def test_the_proxys_own_never_pass() -> None:
    environ = {"WELLSPOKEN_KEY": "1", "HF_ADMIN_KEY": "2", "HF_TOKEN": "3"}
    inherit = ("*", "WELLSPOKEN_KEY", "HF_ADMIN_KEY")
    assert pass_environment(environ, inherit, {}, own=("HF_ADMIN_KEY",)) == {"HF_TOKEN": "3"}


def test_extra_wins() -> None:
    environ = {"HF_TOKEN": "old", "WELLSPOKEN_KEY": "old"}
    extra = {"HF_TOKEN": "new", "WELLSPOKEN_KEY": "new", "ANY": "x"}
    assert pass_environment(environ, (), extra, own=("HF_TOKEN",)) == extra


def test_what_was_given_stays_as_it_is() -> None:
    environ, extra = {"PATH": "/bin", "KEY": "k"}, {"A": "1"}
    pass_environment(environ, ("KEY",), extra)["B"] = "2"
    assert (environ, extra) == ({"PATH": "/bin", "KEY": "k"}, {"A": "1"})
