"""Who may use the proxy: the clients' API keys, and the owner or the client that a key stands for.

A key comes as `Authorization: Bearer KEY`, or as `x-api-key: KEY`, which Anthropic's SDK sends.
Only SHA-256 digests of the keys are kept: a key of 32 random characters needs no slower hash, and
one that people make up is theirs to choose well. Nothing here quotes a key, or a part of one, in an
error or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from multidict import CIMultiDictProxy

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config.tables import Auth, AuthClient, Config
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.limits.clients import KnownClient

LONGEST: Final = 1024
"""Characters of a key, at most."""

_LABEL: Final = b"wellspoken: owner of stored completions"
_KEY: Final = re.compile(rf"[!-+\--~]{{1,{LONGEST}}}")  # visible ASCII without the comma
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_MOST: Final = 1024 * 1024  # bytes of a file of keys


def owner_of(key: str) -> str:
    """Return what stands for a key's holder in the store: 32 hex digits, the same for all time.

    An HMAC with the key itself as secret and a fixed label as message. So a copy of the database
    tells nobody a key that cannot be guessed, and the value is no digest of the key that anybody
    holds for another purpose: neither this proxy, to compare, nor a list of leaked keys. No other
    secret goes in: all proxies on one database have to agree, also after a restart. A new key is a
    new owner.
    """
    return hmac.digest(_bytes(key), _LABEL, "sha256").hex()[:32]


class Keys:
    """The keys that clients may use, read once and kept as digests.

    `references` are env:NAME or file:PATH, `clients` those with a name, who have their own. With
    neither the proxy is open, and everybody is the owner ""; `passes` says that some backend gets
    the clients' own keys even so, and then these tell the owners apart. `where`: what the
    configuration calls the references. Raises ConfigError for a reference that cannot be read or
    holds no key, and for a key that two have.
    """

    def __init__(
        self,
        references: tuple[str, ...],
        *,
        clients: Sequence[AuthClient] = (),
        passes: bool = False,
        where: str = "auth.keys",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.references = references
        self._passes = passes
        self._environ = environ
        self._digests: dict[bytes, KnownClient | None] = {}
        self._digests.update(dict.fromkeys(self._read(references, where)))
        for at, table in enumerate(clients):
            client = KnownClient(table)
            for digest in self._read(table.keys, f"auth.client[{at}].keys"):
                if self._digests.setdefault(digest, client) is not client:
                    raise ConfigError(
                        f"auth.client: a key of {client.name} is somebody else's too. Give each "
                        "client keys of its own."
                    )
        self._owners: dict[bytes, str] = {}  # by the digest of a key that is known

    @classmethod
    def of(cls, config: Config) -> Keys:
        """Return the keys of a configuration. Raises ConfigError."""
        auth = config.auth if isinstance(config.auth, Auth) else Auth()
        passes = any(one.auth == "pass" for one in config.backend)
        return cls(auth.keys, clients=auth.client, passes=passes)

    @classmethod
    def of_admin(cls, config: Config) -> Keys:
        """Return the keys for what is about the proxy itself. Raises ConfigError."""
        references = config.auth.admin if isinstance(config.auth, Auth) else ()
        return cls(references, where="auth.admin")

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"<Keys: {len(self)} keys of {len(self.references)} references>"

    def owner(self, headers: CIMultiDictProxy[str]) -> str:
        """Return the owner that a request's key stands for; see `find`."""
        return self.find(headers)[0]

    def find(self, headers: CIMultiDictProxy[str]) -> tuple[str, KnownClient | None]:
        """Return the owner that a request's key stands for, "" where all share one, and the client.

        Raises RequestError 401 without a key that is known and has not expired, where keys are
        configured.
        """
        if not self._digests:
            given = presented(headers, ours=False) if self._passes else ""
            return (owner_of(given) if given else ""), None
        key = presented(headers, ours=True)
        if not key:
            raise _unauthorized(
                "No API key came with this request. Send it in the header "
                "Authorization: Bearer YOUR_KEY."
            )
        digest = _digest(key) if len(key) <= LONGEST else b""
        if not self._knows(digest):
            raise _unauthorized(
                "Incorrect API key provided. Ask whoever runs this server for a key of yours."
            )
        client = self._digests[digest]
        if client is not None:
            if client.expires <= time.time():
                raise _unauthorized(
                    "This API key has expired. Ask whoever runs this server for a new one."
                )
            return client.owner, client
        owner = self._owners.get(digest)
        if owner is None:
            owner = self._owners[digest] = owner_of(key)
        return owner, None

    def admits(self, headers: CIMultiDictProxy[str]) -> bool:
        """Say whether a request has a key that is known, or needs none."""
        try:
            self.owner(headers)
        except RequestError:
            return False
        return True

    def compared(self, old: Keys) -> tuple[int, int]:
        """Return how many of these keys `old` has not, and how many of its keys are not here."""
        return len(self._digests.keys() - old._digests), len(old._digests.keys() - self._digests)

    def _knows(self, digest: bytes) -> bool:
        """Say whether a key is one of ours, in a time that does not tell which or how nearly."""
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found

    def _read(self, references: tuple[str, ...], where: str) -> Iterator[bytes]:
        for reference in references:
            found = [_digest(key) for key in self._keys(reference, where)]
            if not found:
                raise ConfigError(f"{where}: {reference} holds no key. Put one there.")
            yield from found

    def _keys(self, reference: str, where: str) -> Iterator[str]:
        """Yield the keys of one reference; a variable may hold several with commas between."""
        kind, _, rest = reference.partition(":")
        if kind == "file":
            text = _text(rest, where)
        else:
            found = (os.environ if self._environ is None else self._environ).get(rest)
            if found is None:
                raise ConfigError(f"{where}: the variable {rest} is not set. Set it.")
            text = found.replace(",", "\n")
        for number, line in enumerate(text.split("\n"), 1):
            key = _COMMENT.sub("", line).strip()
            if key and not _KEY.fullmatch(key):
                raise ConfigError(
                    f"{where}: {reference}, line {number}, is no key. Write one a line: "
                    f"visible ASCII without spaces and commas, at most {LONGEST} characters."
                )
            if key:
                yield key


def presented(headers: CIMultiDictProxy[str], *, ours: bool) -> str:
    """Return the key that a request brings, "" without one; `ours`: it is meant for the proxy.

    One that is only passed on is the backend's affair: any scheme's credentials tell people apart,
    and Authorization counts before x-api-key, as it is what goes along with a chat. Raises
    RequestError 401 for a header that comes twice, and for two that disagree about a key of ours:
    nobody knows which of them another program on the way would go by.
    """
    bearer, named = (headers.getall(name, ()) for name in ("Authorization", "x-api-key"))
    if len(bearer) > 1 or len(named) > 1:
        raise _unauthorized(
            "The header with the API key came more than once. Send Authorization or x-api-key, "
            "once."
        )
    value = bearer[0].strip() if bearer else ""
    scheme, _, token = value.partition(" ")
    first = token.strip() if scheme.lower() == "bearer" else "" if ours else value
    second = named[0].strip() if named else ""
    if ours and first and second and first != second:
        raise _unauthorized(
            "Authorization and x-api-key hold different API keys. Send one of them."
        )
    return first or second


def _unauthorized(message: str) -> RequestError:
    # OpenAI's SDKs never ask again after a 401; Claude Code does, for minutes, unless it is told.
    headers = {"WWW-Authenticate": "Bearer", "x-should-retry": "false"}
    return RequestError(message, status=401, code="invalid_api_key", headers=headers)


def _text(name: str, where: str) -> str:
    """Return the text of a file of keys. Raises ConfigError."""
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise ConfigError(f"{where}: {name} is larger than {_MOST} bytes. Is it the file?")
        return data.decode("utf-8-sig", "replace")  # what was no ASCII is no key either
    except OSError as error:
        raise ConfigError(
            f"{where}: cannot read {name}: {error.strerror}. Check its path and rights."
        ) from None
    except (ValueError, RuntimeError) as error:  # a NUL, or the home of a user who is not there
        raise ConfigError(f"{where}: {name!r} is no path: {error}. Correct it.") from None


def _digest(key: str) -> bytes:
    return hashlib.sha256(_bytes(key)).digest()


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
