"""Tokenizer files: found and read here, off the event loop, given to adapters as bytes.

A setting is a tiktoken encoding's name, the path of a `.tiktoken` file, or that of a Hugging Face
`tokenizer.json`. Nothing is downloaded unless the configuration says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config.values import ConfigError

if TYPE_CHECKING:
    import tiktoken

    from wellspoken.adapters.tokens.vocabulary import Vocabulary

# Where the encodings of tiktoken 0.14 lie, and their SHA-256 (tiktoken_ext/openai_public.py). Its
# cache names a file by the SHA-1 of its address, and a file that is not the expected one is fetched
# again without being asked (tiktoken/load.py, read_file_cached), so that is looked at here first.
_PUBLIC = "https://openaipublic.blob.core.windows.net/encodings/"
_R50K = ("r50k_base", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_P50K = ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069")
_CL100K = ("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7")
_O200K = ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d")
_FILES = {
    "r50k_base": _R50K,
    "p50k_base": _P50K,
    "p50k_edit": _P50K,
    "cl100k_base": _CL100K,
    "o200k_base": _O200K,
    "o200k_harmony": _O200K,
}


class Tokenizer:
    """One configured tokenizer; what can be checked without reading it is checked at once.

    Raises ConfigError for a name that is neither an encoding nor a readable file, and for an
    encoding that is not in tiktoken's cache and must not be downloaded.
    """

    def __init__(
        self, setting: str, *, download: bool = False, environ: Mapping[str, str] | None = None
    ) -> None:
        self._setting = setting
        self._encoding = setting if setting in _FILES else None
        self._task: asyncio.Task[Vocabulary] | None = None
        self._download = download
        if self._encoding is None:
            self._path = Path(os.path.expanduser(setting))  # which takes any ~name
            self._check_file()
        else:
            self._path = cached_file(setting, os.environ if environ is None else environ)
            if not download and not self._path.is_file():
                raise ConfigError(
                    f"tokenizer: the encoding {setting!r} is not in tiktoken's cache "
                    f"({self._path.parent}). Set tokenizer_download = true to let it be "
                    "downloaded once, or give the path of a .tiktoken file."
                )

    def _check_file(self) -> None:
        if not self._path.is_file() or not os.access(self._path, os.R_OK):
            raise ConfigError(
                f"tokenizer: {self._setting!r} is no readable file and no known encoding. Give "
                f"the path of a .tiktoken file or a tokenizer.json, or one of "
                f"{', '.join(sorted(_FILES))}."
            )
        if self._path.suffix not in (".tiktoken", ".json"):
            raise ConfigError(
                f"tokenizer: {self._setting!r} is neither a .tiktoken file nor a tokenizer.json. "
                "SentencePiece's tokenizer.model is not read; use the tokenizer.json beside it."
            )

    async def vocabulary(self, *, tells_path: bool = True) -> Vocabulary:
        """Return the vocabulary, read and parsed in a thread at the first call.

        Raises RequestError 500 where that fails, which `tells_path`, or else the log does; a later
        call tries again.
        """
        if self._task is None:
            self._task = asyncio.create_task(asyncio.to_thread(self._read))
        task = self._task
        try:
            # Shielded: the client that happened to come first may leave, the others still wait.
            return await asyncio.shield(task)
        except (OSError, ValueError) as error:
            self._task = None
            which, why = f"{self._setting!r} ", str(error)
            if not tells_path:
                log = logging.getLogger("wellspoken")
                log.error("the tokenizer %scannot be used: %s", which, why)
                which, why = "", "the proxy's log says why"
            raise RequestError(
                f"The proxy's tokenizer {which}cannot be used: {why}. Correct the "
                "setting tokenizer of this backend.",
                status=500,
                type="server_error",
                code="tokenizer_unusable",
            ) from error

    def _read(self) -> Vocabulary:
        from wellspoken.adapters.tokens import vocabulary

        if self._encoding is not None:
            return vocabulary.from_encoding(self._named(self._encoding))
        data = self._path.read_bytes()
        if self._path.suffix == ".json":
            return vocabulary.from_tokenizer_json(data)
        return vocabulary.from_tiktoken_file(data)

    def _named(self, name: str) -> tiktoken.Encoding:
        import tiktoken

        if not self._download:
            found = hashlib.sha256(self._path.read_bytes()).hexdigest()
            if found != _FILES[name][1]:
                raise ValueError(f"{self._path} in tiktoken's cache is damaged; remove it")
        return tiktoken.get_encoding(name)


def cached_file(encoding: str, environ: Mapping[str, str]) -> Path:
    """Return where tiktoken's cache keeps an encoding's file, whether it is there or not."""
    folder = environ.get("TIKTOKEN_CACHE_DIR") or environ.get("DATA_GYM_CACHE_DIR")
    base = Path(folder) if folder else Path(tempfile.gettempdir()) / "data-gym-cache"
    address = f"{_PUBLIC}{_FILES[encoding][0]}.tiktoken"
    return base / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
