"""A part of a message that the model cannot read: the client's mistake, with its place."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.replay import exchange
from wellspoken.adapters.backend_answer import error_of


@pytest.mark.parametrize(
    ("kind", "part"), [("image", "image_url"), ("audio", "input_audio"), ("video", "video_url")]
)
def test_a_part_that_the_model_cannot_read_is_the_clients(kind: str, part: str) -> None:
    """llama.cpp says so with a 500, by which an SDK tries twice more (captured, b11549)."""
    said = f"{kind} input is not supported - hint: if this is unexpected, provide the mmproj"
    sent = json.dumps({"error": {"code": 500, "message": said, "type": "server_error"}}).encode()
    content = [{"type": "text", "text": "hi"}, {"type": part, part: {"url": "u"}}]
    parts = [{"role": "user", "content": "a"}, {"role": "user", "content": content}]
    asked = exchange({"model": "m", "messages": [{"role": "user", "content": "x"}]})
    asked = replace(
        asked, parts=exchange({"model": "m", "messages": parts}).parts if kind == "image" else {}
    )
    fault = error_of(asked, 500, sent)
    assert (fault.status, fault.type) == (400, "invalid_request_error")
    assert fault.code == "unsupported_parameter"
    assert fault.param == ("messages[1].content[1]" if kind == "image" else "messages")
    assert f"'{part}'" in fault.message and said in fault.message
    assert asked.notes.counts == {"error_content_part": 1}
    other = sent.replace(b"is not supported", b"failed")
    assert error_of(asked, 500, other).status == 500
