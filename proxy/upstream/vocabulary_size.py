"""How many token ids a backend's model has, asked once where a request names token ids.

llama.cpp tells it in GET /v1/models (`data[].meta.n_vocab`, in b7376 and b11549 alike); vLLM 0.32.0
and the others tell nothing there, so they are not asked. Where a server does not tell, the
configured tokenizer's size counts, or nothing is known; that fails no request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Final

from msgspec import DecodeError, Meta, Struct, json

from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError

LIMIT: Final = 1024 * 1024  # bytes of a list of models
AGAIN: Final = 60.0  # seconds an answer holds, since another model may be served by then
SOON: Final = 5.0  # seconds until a server that did not answer is asked again


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


@dataclass(slots=True, eq=False)
class VocabularySizes:
    """What one target's server says of its vocabularies.

    However many requests need it at a time, one asking is under way. It is asked anew `AGAIN`
    seconds later, at the next need, and when the server was recognised anew or has another address.
    """

    _sizes: dict[str, int] = field(default_factory=dict)
    _asked: float = 0.0  # when the asking began whose answer holds
    _server: tuple[Upstream | None, object] = (None, None)
    _task: asyncio.Task[None] | None = None

    async def find(self, model: str, upstream: Upstream, path: str, found: object) -> int | None:
        """Return the size that the server tells of `model` under `path`, None if it tells none.

        `found`: what the server was recognised as.
        """
        now = asyncio.get_running_loop().time()
        same = self._server[0] is upstream and self._server[1] is found
        if not same or now > self._asked + AGAIN:
            self._server = (upstream, found)
            self._asked, self._sizes = now, {}
            self._task = asyncio.create_task(self._ask(upstream, path, self._server))
        if self._task is not None:
            # Shielded: the client that came first may leave, the others still wait.
            await asyncio.shield(self._task)
        return self._sizes.get(model, self._sizes.get(""))

    async def _ask(self, upstream: Upstream, path: str, server: object) -> None:
        """Ask, and keep the answer unless another server was asked meanwhile."""
        status, body = 0, b""
        with suppress(UpstreamError):  # what is unknown is not checked
            status, body = await upstream.get(path, LIMIT)
        if self._server is not server:
            return
        if status == 200:
            self._sizes = read_sizes(body)
        else:
            self._asked += SOON - AGAIN
