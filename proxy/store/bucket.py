"""Large columns in an S3-compatible bucket, through `obstore` (the extra [s3])."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlsplit

from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.places import MOST, TIMEOUT, PlaceError, check_key

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

T = TypeVar("T")

_CONNECT = 5.0
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PREFIX = r"[A-Za-z0-9!_.'()/=-]*"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_HINT = "write s3://bucket/prefix, with ?endpoint=https://host:port for a server that is not AWS"


class Bucket:
    """Objects under a prefix of a bucket: `s3://bucket/prefix?endpoint=https://host&region=name`.

    Credentials come from the environment as the AWS tools read it (AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, web identity and container roles, instance metadata), and so do endpoint
    and region that the URL does not name (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION). With
    an endpoint the bucket stands in the path, as MinIO and its like want it, unless
    AWS_VIRTUAL_HOSTED_STYLE_REQUEST says otherwise. Plain http only where the endpoint says http.
    `timeout`: seconds for one operation, tries again included. Raises Unusable for a URL that
    cannot be used.
    """

    def __init__(
        self, url: str, *, timeout: float = TIMEOUT, environ: Mapping[str, str] = os.environ
    ) -> None:
        parts = _parts(url)
        options = _options(parts)
        endpoint = options.get("endpoint") or next(
            (environ[name] for name in _ENDPOINTS if environ.get(name)), None
        )
        _check_endpoint(endpoint)
        config: S3Config = {"disable_bulk_delete": True}  # not every server has the bulk request
        if endpoint is not None:
            config["endpoint"] = endpoint
        if "region" in options:
            config["region"] = options["region"]
        self._timeout = timeout
        self._store = _store(parts, config, timeout, (endpoint or "").startswith("http://"))

    async def put(self, key: str, data: bytes) -> None:
        """Put an object, in one request so that it is whole or not there. Raises PlaceError."""
        check_key(key)
        await self._done(lambda: self._store.put_async(key, data, use_multipart=False))

    async def get(self, key: str) -> bytes:
        """Get an object. Raises PlaceError."""
        check_key(key)
        return await self._done(lambda: self._get(key))

    async def delete(self, key: str) -> None:
        """Delete an object. Raises PlaceError."""
        check_key(key)
        try:
            await self._done(lambda: self._store.delete_async(key))
        except PlaceError as error:
            if error.reason != "missing":
                raise

    async def close(self) -> None:
        """Nothing is held but idle connections, which end by themselves."""

    async def _get(self, key: str) -> bytes:
        found = await self._store.get_async(key)
        if found.meta["size"] > MOST:
            raise PlaceError("the object is too large", "failed")
        return bytes(await found.bytes_async())

    async def _done(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout):
                return await work()
        except TimeoutError as error:
            problem = f"the bucket did not answer in {self._timeout:g} s"
            raise PlaceError(problem, "timeout") from error
        except PlaceError:
            raise
        except Exception as error:  # a panic in obstore is of a class that it does not export
            raise _explained(error) from error


def _store(parts: SplitResult, config: S3Config, timeout: float, plain: bool) -> S3Store:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise Unusable(
            "store.large_to names a bucket, and what speaks with it is not installed: "
            "pip install 'wellspoken[s3]'"
        ) from error
    try:
        return S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            config=config,
            client_options={
                "allow_http": plain,
                "connect_timeout": timedelta(seconds=min(_CONNECT, timeout)),
                "timeout": timedelta(seconds=timeout),
            },
            retry_config={
                "max_retries": 2,
                "retry_timeout": timedelta(seconds=timeout),
                "backoff": {
                    "init_backoff": timedelta(seconds=0.1),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
        )
    except (BaseError, ValueError) as error:
        # Its text may repeat what stands in the environment.
        raise Unusable(
            "store.large_to names a bucket, and an AWS_... variable has a value that cannot be "
            "used: correct it"
        ) from error


def _parts(url: str) -> SplitResult:
    """Return a URL's parts; what does not fit is not repeated, since it may hold a secret."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Unusable(f"store.large_to is no URL: {_HINT}") from error
    if "@" in parts.netloc:
        raise Unusable(
            "store.large_to holds credentials: take them out and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY"
        )
    if not re.fullmatch(_BUCKET, parts.netloc) or parts.fragment:
        raise Unusable(f"store.large_to names no bucket: {_HINT}")
    if not re.fullmatch(_PREFIX, parts.path) or {".", ".."} & set(parts.path.split("/")):
        raise Unusable(f"store.large_to has a prefix that not every server takes: {_HINT}")
    return parts


def _options(parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in options.items():
        if name not in ("endpoint", "region") or not value:
            raise Unusable("store.large_to takes ?endpoint=URL and &region=NAME, and nothing else")
    return options


def _check_endpoint(endpoint: str | None) -> None:
    if endpoint is None:
        return
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or "@" in endpoint or not re.fullmatch(r"[!-~]+", endpoint):
        raise Unusable(
            "the endpoint of store.large_to (or AWS_ENDPOINT_URL) is no URL: write it like "
            "https://minio.example:9000, without credentials"
        )


def _explained(error: Exception) -> PlaceError:
    """Return what an error of obstore 0.12 means.

    Its text repeats the request's address and the server's whole answer, so of that only S3's error
    code is told.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error)
    found = re.search(r"<Code>(\w{1,64})</Code>", text)
    code = f" ({found[1]})" if found else ""
    if "NoSuchBucket" in code:
        return PlaceError(f"the bucket does not exist{code}", "denied")
    if isinstance(error, FileNotFoundError):
        return PlaceError(f"no such object{code}", "missing")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return PlaceError(f"the bucket refuses the credentials{code}", "denied")
    # An error without a code may quote a URL, with any digits in it.
    if re.search(r"QuotaExceeded|StorageFull|Insufficient ?Storage", code or text[:400]):
        return PlaceError(f"the bucket is full{code}", "full")
    if "/latest/" in text[:300]:
        return PlaceError("no credentials: set AWS_ACCESS_KEY_ID or give a role", "denied")
    if "kind: Timeout" in text:
        return PlaceError("the bucket did not answer in time", "timeout")
    if "HTTP error" in text:
        return PlaceError("the bucket cannot be reached", "unreachable")
    return PlaceError(f"the bucket did not do it{code}", "failed")
