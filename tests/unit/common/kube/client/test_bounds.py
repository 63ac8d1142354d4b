"""A hostile API server, byte by byte. Each attack took seconds of the event loop, or gigabytes."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import aiohttp
import msgspec
import pytest
from aiohttp.streams import StreamReader
from prometheus_client import REGISTRY

from common.kube.client import bounds
from common.kube.client.api_client import Cluster
from common.kube.client.bounds import AT_ONCE, MAX_INTERIM, MAX_VALUES, SHARE
from common.kube.client.errors import ApiError, Malformed, NotFound, Unavailable
from common.kube.client.kubeconfig import Access
from common.kube.client.meta import Object
from common.kube.client.reach import ANYWHERE
from common.kube.client.resource import Resource, WatchEvent
from common.kube.client.transport import Pace, reading
from common.kube.client.watch import WatchStream
from common.runtime import metrics
from common.runtime.pieces import SMALL
from tests.cpu import counted_turns, longest_turn, seconds_of
from tests.unit.fake_api_server import PATIENCE, eventually

THINGS = Resource("", "v1", "things", "Thing", namespaced=True, type=Object)
OK = b"HTTP/1.1 200 OK\r\n"

Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Hostile:
    """Answers each request with the bytes of `says`, or as `say` does; `sent` counts them."""

    def __init__(self) -> None:
        self.says = b""
        self.say: Say | None = None
        self.heads: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                if self.say is not None:
                    await self.say(writer)
                else:
                    writer.write(self.says)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def attacked(timeout: float = 30.0, *, foreign: bool = True) -> AsyncIterator[tuple[Hostile, Cluster]]:
    hostile = Hostile()
    server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    cluster = Cluster(Access(f"http://127.0.0.1:{port}"), name="hostile", timeout=timeout, foreign=foreign)
    try:
        yield hostile, cluster
    finally:
        await cluster.close()
        for writer in hostile.writers:
            writer.transport.abort()
        server.close()


def whole(body: bytes, *fields: bytes) -> bytes:
    head = b"".join(field + b"\r\n" for field in (*fields, b"Content-Length: %d" % len(body)))
    return OK + head + b"\r\n" + body


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"x-gzip", b"br", b"identity, gzip"])
async def test_a_compressed_answer_is_refused_whatever_was_asked_for(encoding: bytes) -> None:
    body = gzip.compress(b'{"metadata": {}}') if b"gzip" in encoding else zlib.compress(b'{"metadata": {}}')
    async with attacked() as (hostile, cluster):
        hostile.says = whole(body, b"Content-Encoding: " + encoding)
        for ask in (
            lambda: cluster.get(THINGS, "a", "n"),
            lambda: cluster.list(THINGS),
            lambda: cluster.create(THINGS, {"metadata": {"name": "a", "namespace": "n"}}),
            lambda: cluster.merge_patch(THINGS, "a", {}, "n"),
            lambda: cluster.delete(THINGS, "a", "n"),
        ):
            with pytest.raises(Malformed, match="is compressed"):
                await ask()
        with pytest.raises(Malformed, match="is compressed"):
            async with cluster.open_watch(THINGS, resource_version="1") as stream:
                await stream.read()
        assert all(head.lower().count(b"accept-encoding: identity\r\n") == 1 for head in hostile.heads)


async def test_identity_is_no_compression() -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = whole(b'{"metadata": {"name": "a"}}', b"Content-Encoding: Identity")
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


async def test_interim_answers_have_an_end() -> None:
    interim = b"HTTP/1.1 103 x\r\nX: " + b"y" * 100 + b"\r\n\r\n"

    async def endless(writer: asyncio.StreamWriter) -> None:
        for _ in range(400):
            writer.write(interim * 1000)
            await writer.drain()

    async with attacked() as (hostile, cluster):
        hostile.say = endless
        began = time.process_time()
        with pytest.raises(Malformed, match="more than 8 interim answers"):
            await cluster.get(THINGS, "a", "n")
        with pytest.raises(Malformed, match="more than 8 interim answers"):
            async with cluster.open_watch(THINGS, resource_version="1"):
                raise AssertionError("never entered")
        assert time.process_time() - began < 1.0  # without the bound 2 s for each
        hostile.say = None
        hostile.says = interim * MAX_INTERIM + whole(b'{"metadata": {"name": "a"}}')
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (OK + b"".join(b"X-%d: %b\r\n" % (number, b"y" * 4000) for number in range(100)), "head is larger"),
        (OK + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n", "Too many headers|400"),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "head is larger|400"),
        (b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (whole(b"{}") + whole(b"{}"), "more was sent than one answer"),
        (whole(b"{}") * 1000, "more was sent than one answer"),
        (b"HTTP/1.1 204 x\r\n\r\n" * 1000, "truncated"),
    ],
)
async def test_a_head_is_bounded_and_there_is_one_answer(says: bytes, why: str) -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = says
        with pytest.raises(ApiError, match=why) as refused:
            await cluster.get(THINGS, "a", "n")
        assert isinstance(refused.value, Malformed | Unavailable)
        with suppress(ApiError):
            await cluster.get(THINGS, "a", "n")
        assert hostile.connections == 2


async def test_what_is_no_body_is_bounded() -> None:
    """Extensions of chunks and trailers are neither a head nor a body: no other bound meets them."""
    for framing in (b"1;" + b"e" * 16_000 + b"\r\nx\r\n", b"1\r\nx\r\n" * 4000):

        async def endless(writer: asyncio.StreamWriter, framing: bytes = framing) -> None:
            writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(1000):
                writer.write(framing)
                await writer.drain()

        async with attacked() as (hostile, cluster):
            hostile.say = endless
            with pytest.raises(Malformed, match="more framing than content"):
                await cluster.get(THINGS, "a", "n")


async def test_what_comes_after_an_answer_ends_the_connection() -> None:
    """An idle connection would read it until the next request, or for ever."""
    async with attacked() as (hostile, cluster):
        hostile.says = whole(b'{"metadata": {"name": "a"}}')
        await cluster.get(THINGS, "a", "n")
        hostile.writers[0].write(whole(b'{"metadata": {"name": "b"}}') * 1000)
        await eventually(lambda: not any(cluster._requests.connector._conns.values()) or closed(cluster))
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"
        assert hostile.connections == 2


def closed(cluster: Cluster) -> bool:
    (kept,) = cluster._requests.connector._conns.values()  # type: ignore[union-attr]
    return not any(protocol.is_connected() for protocol, _ in kept)


def page(*items: bytes, more: bytes = b"") -> bytes:
    return whole(b'{"metadata": {"continue": "%b"}, "items": [%b]}' % (more, b",".join(items)))


NAMES = [b'{"metadata": {"name": "t%d"}}' % number for number in range(500)]
LABELS = b"{%b}" % b",".join(b'"%d":""' % number for number in range(700_000))
UNREADABLE = [b'{"metadata": {"name": "t%d"}, "spec": 7}' % number for number in range(250)]


class Spec(Object, frozen=True):
    spec: dict[str, str] = {}


SPECS = Resource("", "v1", "specs", "Spec", namespaced=True, type=Spec)


async def test_a_page_has_no_more_objects_than_were_asked_for() -> None:
    """Eight megabytes of `1,` took 22 s of the event loop, and were four million objects that cannot be read."""
    async with attacked() as (hostile, cluster):
        for items in ([b"1"] * 4_000_000, [*NAMES, b"{}"], [b"{}"] * 2_500_000):
            hostile.says = page(*items)
            async with longest_turn() as longest:
                with pytest.raises(Malformed, match="at most length 500"):
                    await cluster.list(THINGS)
            assert longest() < 0.5  # of it most is what this test sends
        hostile.says = page(*NAMES)
        assert len((await cluster.list(THINGS)).items) == 500
        with pytest.raises(Malformed, match="at most length 499"):
            await cluster.list(THINGS, limit=499)


async def test_so_many_objects_that_cannot_be_read_are_no_list() -> None:
    """What is left out of a list would seem to be gone."""
    async with attacked() as (hostile, cluster):
        pages = iter([page(*UNREADABLE, *NAMES[:250], more=b"x")] * 4 + [page(UNREADABLE[0])])

        async def say(writer: asyncio.StreamWriter) -> None:
            writer.write(next(pages))

        hostile.say = say
        with pytest.raises(Malformed, match="more than 1000 specs cannot be read"):
            await cluster.list(SPECS)


async def test_a_list_of_empty_pages_has_an_end() -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = page(more=b"x")
        with pytest.raises(Malformed, match="does not end"):
            await cluster.list(THINGS)
        assert len(hostile.heads) < 110


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"metadata": {"name": "wrong", "labels": %b}}' % LABELS,
        b'{"metadata": {"name": "wrong"}, "status": [%b]}' % b",".join([b"[[[[[[[[[[]]]]]]]]]]"] * 100_000),
        b'{"metadata": {"name": "%b"}}' % (b"n" * 1_000_000),
        b'{"metadata": {"name": "wrong", "uid": "%b"}}' % (b"n" * 600),
    ],
)
async def test_an_object_with_very_many_values_or_a_long_name_is_one_broken_object(wrong: bytes) -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = page(NAMES[0], wrong, NAMES[1])
        listing = await cluster.list(THINGS)
        assert [found.metadata.name for found in listing.items] == ["t0", "t1"]
        (broken,) = listing.broken
        assert len(broken.key) + len(broken.uid) + len(broken.error) < 500
        hostile.says = whole(wrong)
        with pytest.raises(Malformed, match="cannot be read"):
            await cluster.get(THINGS, "wrong", "n")
        hostile.says = OK + b"\r\n" + b'{"type": "ADDED", "object": %b}\n' % wrong
        async with cluster.open_watch(THINGS, resource_version="1") as stream:
            events = await until_some(stream)
        assert [event.object for event in events] == [None]


async def until_some(stream: WatchStream[Object]) -> list[WatchEvent[Object]]:
    while not (events := await stream.read()):
        assert events is not None
    return events


async def test_tokens_and_versions_of_lists_are_not_sent_back_however_long_they_are() -> None:
    async with attacked() as (hostile, cluster):
        for says in (page(more=b"x" * 100_000), whole(b'{"metadata": {"resourceVersion": "%b"}}' % (b"9" * 600))):
            hostile.says = says
            with pytest.raises(Malformed, match="not a list"):
                await cluster.list(THINGS)


async def test_what_is_not_complete_is_bounded_for_all_answers_of_one_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_INCOMPLETE", 1_000_000)

    async def most_of_a_line(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % 600_000 + b"x" * 600_000)

    async with attacked() as (hostile, cluster):
        hostile.say = most_of_a_line
        async with (
            cluster.open_watch(THINGS, resource_version="1") as first,
            cluster.open_watch(THINGS, resource_version="1") as second,
        ):
            with pytest.raises(Malformed, match="all answers together are larger"):
                while True:
                    await asyncio.gather(*(asyncio.wait_for(each.read(), PATIENCE) for each in (first, second)))
        asked = [asyncio.create_task(cluster.get(THINGS, "a", "n")) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(refused.exception(), Malformed)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert cluster._room.taken == 0
        hostile.say, hostile.says = None, whole(b'{"metadata": {"name": "a"}}')
        assert (await cluster.get(THINGS, "a", "n")).metadata.name == "a"


async def test_a_large_page_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    read_in, read = Counter[int](), Resource.read
    wide = b'{"metadata": {"name": "w", "labels": {%b}}}' % b",".join(b'"%d":""' % number for number in range(1700))
    async with attacked() as (hostile, cluster):
        hostile.says = page(*[wide] * 500)
        assert 7_000_000 < len(hostile.says) < 8 * 2**20
        async with counted_turns() as turn, longest_turn() as longest:

            def counted(resource: Resource[Object], content: bytes) -> Object:
                read_in[turn()] += 1
                return read(resource, content)

            monkeypatch.setattr(Resource, "read", counted)
            assert len((await cluster.list(THINGS)).items) == 500
        assert max(read_in.values()) < 50, "two or three in a piece"
        body = hostile.says.partition(b"\r\n\r\n")[2]
        assert longest() < seconds_of(lambda: msgspec.json.decode(body)), (
            "what is left in one piece takes a fifth of it"
        )


async def test_an_object_with_as_many_values_as_are_taken_is_decoded_in_no_long_piece() -> None:
    labels = b",".join(b'"%d":""' % number for number in range(MAX_VALUES - 10))
    async with attacked() as (hostile, cluster):
        hostile.says = page(b'{"metadata": {"name": "a", "labels": {%b}}}' % labels)
        async with longest_turn() as longest:
            assert len((await cluster.list(THINGS)).items) == 1
        many = b'{"metadata": {"labels": %b}}' % LABELS
        assert longest() < seconds_of(lambda: THINGS.object_decoder.decode(many)) / 2  # it takes a tenth of these


async def test_valid_events_without_a_pause_take_their_share_of_the_event_loop() -> None:
    """Four watches of an API server that sends them without a pause."""
    line = b'{"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceVersion": "7"}}}\n'
    events = b"%x\r\n%b\r\n" % (1000 * len(line), line * 1000)
    pieces: list[float] = []

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(events)
            await writer.drain()

    class Measured(Pace):
        def took(self, seconds: float) -> None:
            pieces.append(seconds)
            super().took(seconds)

    async def follow(cluster: Cluster) -> None:
        async with cluster.open_watch(THINGS, resource_version="1") as stream:
            while await stream.read() is not None:
                pass

    async with attacked(foreign=True) as (hostile, cluster):
        assert cluster._pace.share == SHARE
        cluster._pace = Measured(SHARE)
        hostile.say = flood
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(follow(cluster)) for _ in range(4)]
            while time.monotonic() < began + 2 or sum(pieces) < 2 * AT_ONCE:
                await asyncio.sleep(0.05)
            taken, lasted = sum(pieces), time.monotonic() - began
            for each in following:
                each.cancel()
    assert taken <= AT_ONCE + SHARE * lasted + 4 * max(pieces)  # one that is being worked on, for each watch


TINY = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n"


async def test_of_a_watch_that_comes_in_very_many_chunks_others_run_after_each_read() -> None:
    """It had 30 ms of the event loop at once, and six of them had 160 ms."""
    read: list[int] = []
    async with attacked() as (hostile, cluster), counted_turns() as turn:
        hostile.says = OK + TINY
        async with cluster.open_watch(THINGS, resource_version="1") as stream:
            with pytest.raises(Unavailable, match="in the middle of an event"):
                while await stream.read() is not None:
                    read.append(turn())
    assert len(read) > 10
    assert len(set(read)) == len(read)


@pytest.mark.parametrize("watched", [False, True])
async def test_answers_in_very_many_chunks_take_turns(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of them had 18 ms of the event loop at once, and 160 ms where they were watches."""
    reads, chunks = Counter[int](), Counter[int]()  # by turn
    readany, feed_data = StreamReader.readany, StreamReader.feed_data

    async def ask(cluster: Cluster) -> None:
        if not watched:
            await cluster.request("GET", "/")
            return
        async with cluster.open_watch(THINGS, resource_version="1") as stream:
            with suppress(Unavailable):
                while await stream.read() is not None:
                    pass

    async with attacked() as (hostile, cluster), counted_turns() as turn:

        async def read(content: StreamReader) -> bytes:
            part = await readany(content)
            reads[turn()] += 1
            chunks[turn()] += len(part)  # of a byte each
            return part

        def fed(content: StreamReader, data: bytes, size: int = 0) -> bool:
            chunks[turn()] += len(data)
            return feed_data(content, data, size)

        monkeypatch.setattr(StreamReader, "readany", read)
        monkeypatch.setattr(StreamReader, "feed_data", fed)
        hostile.says = OK + TINY
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(ask(cluster))
    assert sum(each > 1 for each in reads.values()) <= 6 * SMALL, "then one of them in a turn"
    assert max(chunks.values()) < 6 * 3000, "of each what is read ahead, and as much again"


async def test_only_who_uses_much_of_the_event_loop_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an honest list of 5,000 Machines takes is no flood, and a flood in small pieces is one."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = Pace(SHARE)
    for _ in range(12):
        pace.took(0.02)
        await pace.turn()
    assert not pauses
    for _ in range(1000):
        pace.took(0.0009)
        await pace.turn()
    assert pauses
    assert pauses[-1] > 0.5 / SHARE


async def test_api_servers_that_others_run_have_that_share() -> None:
    text = kubeconfig_of("https://127.0.0.1:1")
    for others, share in (
        (await Cluster.of_tenant(text, name="alpha/c1", reach=ANYWHERE), SHARE),
        (await Cluster.from_kubeconfig(text, name="seed"), SHARE),
        (Cluster(Access("http://127.0.0.1:1"), name="own"), 1.0),
    ):
        assert others._pace.share == share
        await others.close()


def kubeconfig_of(server: str) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
    )


def refused(reason: str) -> float:
    labels = {"server": "hostile", "reason": reason}
    return REGISTRY.get_sample_value("seedquota_api_answers_refused_total", labels) or 0.0


REFUSED = [
    (whole(b"{}", b"Content-Encoding: gzip"), "Compressed"),
    (OK + b"".join(b"X-%d: %b\r\n" % (number, b"y" * 4000) for number in range(100)), "HeadTooLarge"),
    (b"HTTP/1.1 103 x\r\n\r\n" * 20, "InterimAnswers"),
    (b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "AnotherProtocol"),
    (whole(b"{}") * 2, "SecondAnswer"),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n" + (b"1;" + b"e" * 16_000 + b"\r\n \r\n") * 200, "Framing"),
    (OK + b"Content-Length: 9000000\r\n\r\n", "TooLarge"),
    (whole(b"[]"), "Malformed"),
]


@pytest.mark.parametrize(("says", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
async def test_a_refused_answer_is_counted_once_by_what_was_wrong(says: bytes, reason: str) -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = says
        for ask in (
            lambda: cluster.get(THINGS, "a", "n"),
            lambda: cluster.list(THINGS, limit=1),
            lambda: cluster.create(THINGS, {"metadata": {"name": "a", "namespace": "n"}}),
        ):
            before = refused(reason)
            with pytest.raises(Malformed):
                await ask()
            assert refused(reason) == before + 1
    metrics.no_cluster("hostile")
    assert not refused(reason)


async def test_lists_and_watches_that_are_refused_are_counted_and_a_smaller_page_is_none() -> None:
    async with attacked() as (hostile, cluster):
        hostile.says = page(more=b"x")
        with pytest.raises(Malformed):
            await cluster.list(THINGS)
        assert refused("TooMany") == 1
        hostile.says = OK + b"\r\nno event\n"
        with pytest.raises(Malformed):
            async with cluster.open_watch(THINGS, resource_version="1") as stream:
                await until_some(stream)
        assert refused("Malformed") == 1
        answers = iter([OK + b"Content-Length: 9000000\r\n\r\n", page()])

        async def say(writer: asyncio.StreamWriter) -> None:
            writer.write(next(answers))

        hostile.say = say
        await cluster.list(THINGS)
        assert not refused("TooLarge")
        hostile.say, hostile.says = None, b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"
        with pytest.raises(NotFound):
            await cluster.get(THINGS, "a", "n")
        assert (refused("TooMany"), refused("Malformed")) == (1, 1)
        hostile.says = OK + b"X: " + b"y" * 100_000
        with pytest.raises(Unavailable):
            await cluster.get(THINGS, "a", "n")
        assert refused("Malformed") == 2
    metrics.no_cluster("hostile")


async def test_a_connection_that_was_closed_before_it_is_read_is_an_error_of_the_connection() -> None:
    """aiohttp raises RuntimeError then, which was logged as an error of the program."""
    closed = StreamReader(SimpleNamespace(connected=False), limit=1)  # type: ignore[arg-type]
    with pytest.raises(aiohttp.ClientConnectionError, match="Connection closed"), reading():
        await closed.readany()
