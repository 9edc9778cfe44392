"""What is read from the arguments for `vllm serve`, and which are refused."""

from __future__ import annotations

import pytest

from wellspoken.engine.vllm.vllm_arguments import (
    FORBIDDEN,
    forbidden,
    has,
    model_names_in,
    number,
    option,
)


@pytest.mark.parametrize("flag", sorted(FORBIDDEN))
@pytest.mark.parametrize("form", ["{}", "{}=x"])
def test_forbidden_flags(flag: str, form: str) -> None:
    reason = forbidden(["--enforce-eager", form.format(flag), "x"])
    assert reason is not None
    assert reason.startswith(f"{flag} cannot") and reason.endswith(".")


@pytest.mark.parametrize(
    "written",
    ["--api_key", "--api-k", "--ud", "--ho", "--por=80", "--ssl_key", "--ssl-keyfil", "--confi"],
)
def test_forbidden_flags_in_other_spellings(written: str) -> None:
    assert written.partition("=")[0] in str(forbidden([written]))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--max-model-len", "512", "-tp", "2", "-O3"),
        ("--config-format", "mistral", "--model-impl", "vllm"),
        ("--hf-overrides", '{"a": 1}', "--hf-overrides.rope", "-1"),
        ("--uvicorn-log-level", "warning", "--served-model-name", "host", "port"),
        ("--data-parallel-size", "2", "--api-server-count", "2"),
        ("uds", "host"),
    ],
)
def test_other_arguments_pass(arguments: tuple[str, ...]) -> None:
    assert forbidden(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tool-call-parser", "hermes"], "hermes"),
        (["--tool_call_parser=hermes"], "hermes"),
        (["--tool-call", "hermes"], "hermes"),
        (["--tool-call-parser", "a", "--tool-call-parser", "b"], "b"),
        (["--tool-call-parser"], ""),
        (["--tool-call-parser", "--other"], ""),
        (["--tool-parser-plugin", "x"], None),
        ([], None),
    ],
)
def test_an_option(arguments: list[str], expected: str | None) -> None:
    assert option(arguments, "--tool-call-parser") == expected
    assert has(arguments, "--tool-call-parser") is (expected is not None)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-tp", "4"], 4),
        (["-tp=4"], 4),
        (["--tensor-parallel-size", "x"], 1),
        (["-tp"], 1),
        ([], 1),
    ],
)
def test_a_number(arguments: list[str], expected: float) -> None:
    assert number(arguments, 1, "--tensor-parallel-size", "-tp") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--served-model-name", "a", "b", "--x"], ("a", "b")),
        (["--served-model-name=a"], ("a",)),
        (["--served_model_name", "a"], ("a",)),
        (["--served-model-name", "a", "--served-model-name", "b"], ("b",)),
        (["--x", "a"], ()),
    ],
)
def test_the_served_names(arguments: list[str], expected: tuple[str, ...]) -> None:
    assert model_names_in(arguments) == expected


def test_a_flag_that_begins_another_one_is_itself() -> None:
    """--data-parallel-size is the beginning of --data-parallel-size-local (0.32.0)."""
    arguments = ["--data-parallel-size-local", "4", "--data_parallel_size=16"]
    assert option(arguments, "--data-parallel-size-local", "-dpl") == "4"
    assert option(arguments, "--data-parallel-size", "-dp") == "16"
    assert not has(["--data-parallel-size", "2"], "--data-parallel-size-local")
    assert option(["--data-parallel-size-l", "4"], "--data-parallel-size-local") == "4"
    assert str(forbidden(["--grpc", "--grpc-port", "1"])).startswith("--grpc cannot")
