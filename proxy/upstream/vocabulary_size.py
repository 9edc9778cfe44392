"""How many token ids a backend's model has, asked once where a request names token ids.

llama.cpp tells it in GET /v1/models (`data[].meta.n_vocab`, in b7376 and b11549 alike); vLLM 0.32.0
and the others tell nothing there, so they are not asked. Where a server does not tell, the
configured tokenizer's size counts, or nothing is known; that fails no request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, json

from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.memory import Memory, Server

LIMIT: Final = 1024 * 1024  # bytes of a list of models


class _Meta(Struct):
    n_vocab: Annotated[int, Meta(ge=1)] | None = None


class _Model(Struct):
    id: str = ""
    aliases: list[str] = []
    meta: _Meta | None = None


class _Models(Struct):
    data: list[_Model] = []


_decode = json.Decoder(_Models).decode


def read_sizes(body: bytes) -> dict[str, int]:
    """Return the size of each model's vocabulary by the model's names, {} where none is told.

    A single model has the name "" as well, since such servers serve it under any name.
    """
    try:
        models = _decode(body).data
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    sizes = {
        name: model.meta.n_vocab
        for model in models
        for name in (model.id, *model.aliases, *([""] if len(models) == 1 else ()))
        if model.meta is not None and model.meta.n_vocab is not None
    }
    return sizes


async def find_size(
    sizes: Memory[Mapping[str, int]],
    model: str,
    server: Server,
    upstream: Upstream,
    path: str,
) -> int | None:
    """Return the size that the server tells of `model` under `path`, None if it tells none.

    `sizes` remembers what it told; `server` returns `Target.server`.
    """
    told = await sizes.recall(server, lambda: _ask(upstream, path))
    return told.get(model, told.get(""))


async def _ask(upstream: Upstream, path: str) -> Mapping[str, int] | None:
    try:
        status, body = await upstream.get(path, LIMIT)
    except UpstreamError:
        return None  # what is unknown is not checked
    return read_sizes(body) if status == 200 else None
