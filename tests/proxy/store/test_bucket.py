"""A bucket as the place of large columns, on a real S3-compatible server in a process of its own.

The server is moto 5.2, whose access control checks signatures and users' policies when told to
(`/moto-api/reset-auth`); it is in the venv that `make check` creates (tests/live/s3-tools.txt).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from wellspoken.proxy.store import bucket
from wellspoken.proxy.store.bucket import Bucket
from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.large import Columns
from wellspoken.proxy.store.packing import PLACE, ZLIB
from wellspoken.proxy.store.places import PlaceError, place_of
from wellspoken.proxy.store.rows import Row

BIN = Path(__file__).parents[3] / ".venv-s3" / "bin"
KEY = "ab/0123456789abcdef0123456789abcdef-00000000000000000000000000000000"
OTHER = KEY[:-1] + "1"
SECRET = "canary-secret-access-key"

real = pytest.mark.skipif(
    not (BIN.parent / ".installed").exists(),
    reason="no S3-compatible server here: make .venv-s3/.installed",
)

# Before access control is on: a bucket, and a user who may do with its objects what we do, and
# nothing else (no listing, as a careful administrator would have it).
SET_UP = """
import json, sys, boto3
made = dict(endpoint_url=sys.argv[1], region_name="us-east-1",
            aws_access_key_id="a", aws_secret_access_key="b")
boto3.client("s3", **made).create_bucket(Bucket="kept")
iam = boto3.client("iam", **made)
iam.create_user(UserName="proxy")
actions = ["s3:PutObject", "s3:GetObject", "s3:DeleteObject"]
iam.put_user_policy(UserName="proxy", PolicyName="p", PolicyDocument=json.dumps({
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": actions, "Resource": "arn:aws:s3:::*"}]}))
key = iam.create_access_key(UserName="proxy")["AccessKey"]
print(json.dumps([key["AccessKeyId"], key["SecretAccessKey"]]))
"""


class Server(NamedTuple):
    """A running server, and the credentials of its only user."""

    process: subprocess.Popen[bytes]
    url: str
    key: str
    secret: str


def _start(port: int = 0) -> tuple[subprocess.Popen[bytes], str]:
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    process = subprocess.Popen(
        [BIN / "moto_server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError("the S3-compatible server did not start")
        with socket.socket() as tried:
            if not tried.connect_ex(("127.0.0.1", port)):
                break
        time.sleep(0.1)
    return process, f"http://127.0.0.1:{port}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)


def _prepared(process: subprocess.Popen[bytes], url: str) -> Server:
    done = subprocess.run(
        [BIN / "python", "-c", SET_UP, url], capture_output=True, check=True, timeout=60
    )
    key, secret = json.loads(done.stdout)
    plain = {"Content-Type": "text/plain"}
    urlopen(Request(f"{url}/moto-api/reset-auth", b"0", plain, method="POST"), timeout=10).close()
    return Server(process, url, key, secret)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    process, url = _start()
    try:
        yield _prepared(process, url)
    finally:
        _end(process)


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def credentials(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
    return server


def row(answer: bytes) -> Row:
    return Row("chatcmpl-1", "owner", 1, "m", "req-1", {}, answer, b"{}", b"[]")


def numbers(count: int) -> bytes:
    return b"[" + b",".join(b"%d" % random.getrandbits(60) for _ in range(count)) + b"]"


@real
async def test_put_get_replace_delete(credentials: Server) -> None:
    place = place_of(f"s3://kept/some/prefix?endpoint={credentials.url}")
    assert isinstance(place, Bucket)
    await place.put(KEY, b"one")
    assert await place.get(KEY) == b"one"
    await place.put(KEY, b"")
    assert await place.get(KEY) == b""
    await place.put(KEY, b"two" * 100_000)
    assert await place.get(KEY) == b"two" * 100_000
    elsewhere = Bucket(f"s3://kept/?endpoint={credentials.url}")
    with pytest.raises(PlaceError):
        await elsewhere.get(KEY)
    await place.delete(KEY)
    await place.delete(KEY)
    with pytest.raises(PlaceError) as caught:
        await place.get(KEY)
    # Without the right to list a bucket, AWS says that a missing object is forbidden.
    assert caught.value.reason in ("missing", "denied")
    await place.close()


@real
async def test_the_endpoint_may_come_from_the_environment(
    credentials: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", credentials.url)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    place = place_of("s3://kept")
    await place.put(OTHER, b"x")
    assert await place.get(OTHER) == b"x"
    await place.delete(OTHER)


@real
async def test_fifty_megabytes_go_and_come_back(credentials: Server) -> None:
    place = Bucket(f"s3://kept?endpoint={credentials.url}")
    data = random.Random(1).randbytes(50 * 1024 * 1024)
    await place.put(KEY, data)
    assert await place.get(KEY) == data
    await place.delete(KEY)


@real
async def test_a_large_answer_through_the_columns(credentials: Server) -> None:
    columns = Columns(64 * 1024, place_of(f"s3://kept/a?endpoint={credentials.url}"))
    await columns.open()
    given = row(numbers(100_000))
    stored = await columns.away(given)
    assert stored.answer.startswith(PLACE)
    assert await columns.back(stored) == given
    assert await columns.drop(stored)
    with pytest.raises((Unusable, Unavailable), match="the answer of chatcmpl-1 cannot be read"):
        await columns.back(stored)
    await columns.close()


@real
@pytest.mark.parametrize(
    ("key", "secret", "named", "said"),
    [
        (None, SECRET, "kept", "refuses the credentials (SignatureDoesNotMatch)"),
        ("AKIANOBODY", SECRET, "kept", "refuses the credentials (InvalidAccessKeyId)"),
        (None, None, "nowhere", "does not exist (NoSuchBucket)"),
    ],
)
async def test_what_an_administrator_got_wrong(
    credentials: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: str | None,
    secret: str | None,
    named: str,
    said: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    if key is not None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    if secret is not None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    counted: list[str] = []
    place = Bucket(f"s3://{named}?endpoint={credentials.url}")
    columns = Columns(64 * 1024, place, count=counted.append)
    await columns.open()
    given = row(numbers(100_000))
    stored = await columns.away(given)
    assert stored.answer.startswith(ZLIB)
    assert await columns.back(stored) == given
    assert counted == ["place_denied"] * 2
    assert caplog.messages == [
        f"store.large_to: the bucket {said}; large answers stay in the database"
    ]
    for work in (place.get(KEY), place.delete(KEY), place.put(KEY, b"x")):
        with pytest.raises(PlaceError) as caught:
            await work
        assert said in str(caught.value) and caught.value.reason == "denied"
        assert SECRET not in str(caught.value) and "127.0.0.1" not in str(caught.value)
    assert SECRET not in caplog.text and credentials.secret not in caplog.text


@pytest.fixture
def another() -> tuple[subprocess.Popen[bytes], str]:
    """A server that the test ends, with no access control. Its start may take some seconds."""
    return _start()


@real
async def test_a_server_that_is_killed_and_comes_back(
    another: tuple[subprocess.Popen[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    process, url = another
    try:
        bucket_made = Request(f"{url}/kept", b"", {"Content-Length": "0"}, method="PUT")
        await asyncio.to_thread(lambda: urlopen(bucket_made, timeout=10).close())
        columns = Columns(64 * 1024, Bucket(f"s3://kept?endpoint={url}", timeout=5))
        first = await columns.away(row(numbers(50_000)))
        assert first.answer.startswith(PLACE)
        # Stopped, it takes connections and answers nothing; killed in the middle of that.
        process.send_signal(signal.SIGSTOP)
        going = asyncio.create_task(columns.away(row(numbers(500_000))))
        await asyncio.sleep(0.5)
        assert not going.done()
        _end(process)
        assert (await going).answer.startswith(ZLIB)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await columns.back(first)
        process, _ = _start(int(url.rpartition(":")[2]))
        await asyncio.to_thread(lambda: urlopen(bucket_made, timeout=10).close())
        await asyncio.sleep(1.1)
        assert (await columns.away(row(numbers(50_000)))).answer.startswith(PLACE)
    finally:
        _end(process)


@pytest.fixture
async def mute() -> AsyncIterator[str]:
    """A server that takes connections and says nothing."""

    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(1 << 16):
                pass
        finally:
            writer.close()

    server = await asyncio.start_server(quiet, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_server_that_says_nothing(mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    place = Bucket(f"s3://kept?endpoint={mute}", timeout=0.5)
    for work in (place.put(KEY, b"x"), place.get(KEY), place.delete(KEY)):
        begun = time.monotonic()
        with pytest.raises(PlaceError) as caught:
            await work
        assert caught.value.reason == "timeout"
        assert time.monotonic() - begun < 3


# Error codes of S3's API reference ("Error responses") and of MinIO (XMinioStorageFull).
REFUSALS = [
    (404, "NoSuchKey", "missing", "no such object (NoSuchKey)"),
    (404, "NoSuchBucket", "denied", "the bucket does not exist (NoSuchBucket)"),
    (403, "AccessDenied", "denied", "the bucket refuses the credentials (AccessDenied)"),
    (403, "RequestTimeTooSkewed", "denied", "refuses the credentials (RequestTimeTooSkewed)"),
    (507, "XMinioStorageFull", "full", "the bucket is full (XMinioStorageFull)"),
    (500, "InternalError", "failed", "the bucket did not do it (InternalError)"),
    (400, "<x>", "failed", "the bucket did not do it"),
]


@pytest.mark.parametrize(("status", "code", "reason", "said"), REFUSALS)
async def test_what_servers_answer(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, reason: str, said: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")

    async def answer(request: web.BaseRequest) -> web.Response:
        text = f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>"
        return web.Response(status=status, text=text, content_type="application/xml")

    async with RawTestServer(answer) as server:
        place = Bucket(f"s3://kept?endpoint={server.make_url('')}&region=eu-west-1")
        for work in (place.put(KEY, b"x"), place.get(KEY)):
            with pytest.raises(PlaceError) as caught:
                await work
            assert said in str(caught.value) and caught.value.reason == reason
            assert SECRET not in str(caught.value)
        if reason == "missing":
            await place.delete(KEY)
        else:
            with pytest.raises(PlaceError):
                await place.delete(KEY)


async def test_an_object_too_large_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is read: its length says that it is none of ours."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setattr(bucket, "MOST", 4)

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(
            body=b"12345", headers={"Last-Modified": "Sat, 01 Nov 2025 00:00:00 GMT"}
        )

    async with RawTestServer(answer) as server:
        place = Bucket(f"s3://kept?endpoint={server.make_url('')}")
        with pytest.raises(PlaceError, match="too large") as caught:
            await place.get(KEY)
        assert caught.value.reason == "failed"


async def test_no_credentials_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then instance metadata is asked, as the AWS tools do; here nobody has any."""
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    place = Bucket("s3://kept?endpoint=http://127.0.0.1:9", timeout=5)
    with pytest.raises(PlaceError, match="no credentials: set AWS_ACCESS_KEY_ID") as caught:
        await place.put(KEY, b"x")
    assert caught.value.reason == "denied"


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    place = Bucket("s3://kept?endpoint=http://127.0.0.1:9")
    with pytest.raises(PlaceError, match="cannot be reached") as caught:
        await place.put(KEY, b"x")
    assert caught.value.reason == "unreachable"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://Kept", "names no bucket"),
        ("s3://kept:80", "names no bucket"),
        ("s3://kept#x", "names no bucket"),
        ("s3://[kept", "is no URL"),
        (f"s3://key:{SECRET}@kept", "holds credentials"),
        ("s3://kept/a b", "prefix that not every server takes"),
        ("s3://kept/a/../b", "prefix that not every server takes"),
        ("s3://kept?secret=x", "and nothing else"),
        ("s3://kept?endpoint=", "and nothing else"),
        ("s3://kept?endpoint=minio:9000", "write it like https://minio"),
        ("s3://kept?endpoint=ftp://minio", "write it like https://minio"),
        (f"s3://kept?endpoint=https://u:{SECRET}@minio", "without credentials"),
        ("s3://kept?endpoint=https://minio:99999", "write it like https://minio"),
        ("s3://kept?endpoint=https://mi%20nio", "write it like https://minio"),
    ],
)
def test_what_is_no_bucket(url: str, said: str) -> None:
    with pytest.raises(Unusable) as caught:
        place_of(url)
    assert said in str(caught.value) and SECRET not in str(caught.value)


def test_a_bad_value_in_the_environment_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", SECRET)
    with pytest.raises(Unusable, match=r"an AWS_\.\.\. variable") as caught:
        place_of("s3://kept")
    assert SECRET not in str(caught.value)


def test_plain_http_needs_an_endpoint_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "not a url")
    with pytest.raises(Unusable, match="AWS_ENDPOINT_URL"):
        place_of("s3://kept")


async def test_a_bucket_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(Unusable, match=r"pip install 'wellspoken\[s3\]'"):
        place_of("s3://kept")


def test_nothing_else_needs_it() -> None:
    """A proxy with no bucket starts where obstore is not installed."""
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "import wellspoken.proxy.store.large, wellspoken.proxy.store.bucket\n"
        "from wellspoken.proxy.store.places import place_of; place_of('/nowhere')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_digits_of_an_address_mean_nothing() -> None:
    text = "Generic S3 error: HTTP error: error sending request for url (http://h:15070/b/0507a)"
    assert bucket._explained(Exception(text)).reason == "unreachable"
