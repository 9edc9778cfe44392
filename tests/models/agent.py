"""The tiny scripted model with more to say: what agents and their clients ask of a model.

It is `tests.models.tiny` and answers as that does, but that words of the last message, the user's
or a tool's, select one of SCRIPTS. So a program that a page shows is run as it stands there: the
model calls the tool which the program offers, and answers after it.
"""

from __future__ import annotations

from pathlib import Path

from tests.models import tiny
from tests.models.gguf_file import write_gguf

_OVER = ["}\n</tool_call>", tiny.END]
SCRIPTS: dict[str, list[str]] = {
    "hand": ['<tool_call>\n{"name": "transfer_to_clock"', ', "arguments": {}', *_OVER],
    "time": ['<tool_call>\n{"name": "get_time"', ', "arguments": {"tz":', ' "UTC"}', *_OVER],
    "weather": [
        '<tool_call>\n{"name": "get_weather"',
        ', "arguments": {"location":',
        ' "San Francisco"}',
        *_OVER,
    ],
    "exec": [
        '<tool_call>\n{"name": "exec_command"',
        ', "arguments": {"cmd":',
        ' "echo over"}',
        *_OVER,
    ],
    "city": ['{"city":', ' "Paris",', ' "people":', " 2", "}", tiny.END],
}
CUES = {
    "hand": "What time is it in UTC?",
    "time": '"assistant": "Clock"',  # what the Agents SDK answers the handover with
    "weather": "weather in San Francisco",  # as llm-comply asks
    "exec": "Run echo.",
    "city": "Which city?",
}
"""Script -> what in the last message selects it."""

_IS_TEXT = "{%- if last is string -%}"
TEMPLATE = tiny.TEMPLATE.replace(
    _IS_TEXT,
    _IS_TEXT
    + "".join(
        f"{{%- if {cue!r} in last -%}}{{{{ '<|{name}|>' }}}}{{%- endif -%}}"
        for name, cue in CUES.items()
    ),
)


def write_model(path: Path, context: int = tiny.CONTEXT) -> Path:
    """Write the model, with a sentencepiece tokenizer, and return `path`."""
    vocabulary = tiny.sentencepiece()
    vocabulary.controls([f"<|{name}|>" for name in SCRIPTS])
    follows = tiny.transitions(vocabulary, tiny.SCRIPTS | SCRIPTS)
    vocabulary.pad(32)
    size = len(vocabulary.texts)
    metadata = tiny.describe(size, context) | tiny.tokenize(vocabulary, "spm")
    metadata["tokenizer.chat_template"] = TEMPLATE
    write_gguf(path, metadata, tiny.weights(size, follows))
    return path
