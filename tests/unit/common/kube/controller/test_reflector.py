from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from common.kube.client import api_client
from common.kube.client.meta import Object, ObjectMeta
from common.kube.client.resource import Listing, Resource
from common.kube.controller import malformed
from common.kube.controller import reflector as module
from common.kube.controller.reflector import Reflector, State
from common.kube.controller.store import Change
from common.runtime import pieces
from tests.cpu import counted_turns
from tests.running import running
from tests.unit.fake_api_server import PATIENCE, eventually, fake_api_server, status


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = {}


CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True, type=ConfigMap)


@pytest.fixture
async def fake():
    async with fake_api_server() as server:
        yield server


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """A watch that follows another is never late because the machine had other things to do."""
    monkeypatch.setattr(module, "AT_ONCE", 600.0)


@asynccontextmanager
async def reflecting(fake, resource=CONFIGMAPS, **options):
    """A running reflector and the list of changes it reports: ("add" | "update" | "delete", key)."""
    changes = []

    def note(change):
        kind = "add" if change.old is None else "delete" if change.new is None else "update"
        changes.append((kind, (change.new or change.old).metadata.key))

    cluster = fake.cluster()
    made = Reflector(cluster, resource, on_change=note, **options)
    async with running(made.run()):
        yield made, changes
    assert made.state is State.STOPPED


async def test_changes_of_the_first_list_are_told_before_it_is_synced(fake):
    await fake.put("configmaps", "n", "a")
    await fake.put("configmaps", "n", "b")
    async with reflecting(fake) as (made, changes):
        assert made.state is State.STOPPED and not made.synced.is_set()
        started = time.monotonic()
        await made.wait_synced(PATIENCE)
        assert changes == [("add", "n/a"), ("add", "n/b")]
        assert len(made.store) == 2 and made.store.get("n/a").metadata.name == "a"
        await eventually(lambda: made.state is State.WATCHING)
        assert made.error is None and (made.lists_started, made.lists_completed) == (1, 1)
        assert made.last_contact > started


async def test_the_watch_keeps_store_and_indexes(fake):
    def by_color(obj):
        return [obj.data["color"]] if "color" in obj.data else []

    async with reflecting(fake, indexes={"color": by_color}) as (made, changes):
        await made.wait_synced(PATIENCE)
        await fake.put("configmaps", "n", "a", data={"color": "red"})
        await eventually(lambda: [o.metadata.name for o in made.store.by_index("color", "red")] == ["a"])
        await fake.put("configmaps", "n", "a", data={"color": "blue"})
        await eventually(lambda: [o.metadata.name for o in made.store.by_index("color", "blue")] == ["a"])
        assert made.store.by_index("color", "red") == [] and list(made.store._indexes["color"]) == ["blue"]
        await fake.remove("configmaps", "n", "a")
        await eventually(lambda: len(made.store) == 0)
        assert list(made.store._indexes["color"]) == []
        assert changes == [("add", "n/a"), ("update", "n/a"), ("delete", "n/a")]
        assert fake.lists == 1


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark_without_a_list(fake):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        await eventually(lambda: made.unbroken is not None)
        contact, unbroken = made.last_contact, made.unbroken
        fake.version = 500
        fake.bookmark(500)
        await eventually(lambda: made.last_contact > contact)
        fake.end_watches.set()
        fake.end_watches = asyncio.Event()
        await eventually(lambda: fake.watches == 2)
        assert "resourceVersion=500" in fake.requests[-1][1] and fake.lists == 1
        assert made.unbroken == unbroken


async def test_the_end_of_a_watch_in_its_time_proves_what_the_store_has_and_a_list_does(fake):
    fake.keeps_time = True
    async with reflecting(fake, watch_seconds=(1, 1)) as (made, _):
        assert made.proven_at == float("-inf")
        before = time.monotonic()
        await made.wait_synced(PATIENCE)
        listed = made.proven_at
        assert before <= listed <= time.monotonic()
        await eventually(lambda: fake.watches == 2)
        await eventually(lambda: made.proven_at > listed)
        assert made.proven_at <= time.monotonic() - 0.9, "by what had happened when the watch was asked for"
        assert fake.lists == 1


async def test_a_watch_that_ends_early_proves_nothing(fake):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        listed = made.proven_at
        await eventually(lambda: made.unbroken is not None)
        await next_watch(fake, made)
        assert made.proven_at == listed and fake.lists == 1


async def test_a_watch_that_falls_silent_is_given_up_and_is_no_run_without_a_break(fake, monkeypatch):
    monkeypatch.setattr(api_client, "SILENT", 0.1)
    async with reflecting(fake, watch_seconds=(1, 1)) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.unbroken is not None)
        unbroken = made.unbroken
        record, fake.record = fake.record, lambda *_: asyncio.sleep(0)  # what happens now, nobody is told
        await fake.put("configmaps", "n", "a")
        fake.record = record
        await made.wait_listed(2, PATIENCE)
        assert changes == [("add", "n/a")] and made.version == str(fake.version)
        await eventually(lambda: made.unbroken is not None)
        assert made.unbroken != unbroken


async def next_watch(fake, made):
    """The present one brings something and ends in good order."""
    contact, watches = made.last_contact, fake.watches
    fake.version += 1
    fake.bookmark(fake.version)
    await eventually(lambda: made.last_contact > contact)
    fake.end_watches.set()
    fake.end_watches = asyncio.Event()
    await eventually(lambda: fake.watches == watches + 1)


async def test_a_watch_that_goes_on_too_late_is_another_run_and_what_it_tells_first_is_of_none(fake, monkeypatch):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.unbroken is not None)
        unbroken = made.unbroken
        monkeypatch.setattr(module, "AT_ONCE", -1.0)
        await next_watch(fake, made)
        await eventually(lambda: made.unbroken is None)
        monkeypatch.setattr(module, "AT_ONCE", 600.0)
        await next_watch(fake, made)
        await eventually(lambda: made.unbroken is not None)
        assert made.unbroken != unbroken and fake.lists == 1


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_compacted_version_leads_to_a_list_that_tells_all_differences(fake, as_event):
    for name in ("keep", "change", "vanish", "remake"):
        await fake.put("configmaps", "n", name)
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        changes.clear()
        record, fake.record = fake.record, lambda *_: asyncio.sleep(0)  # what happens now, nobody sees
        await fake.put("configmaps", "n", "change", data={"x": "y"})
        await fake.remove("configmaps", "n", "vanish")
        await fake.remove("configmaps", "n", "remake")
        await fake.put("configmaps", "n", "remake")
        await fake.put("configmaps", "n", "new")
        fake.record = record
        fake.compacted, fake.compaction_as_event = fake.version, as_event
        seen = []
        made._on_change = lambda change: (
            seen.append(len(made.store))
            or changes.append(
                (
                    "add" if change.old is None else "delete" if change.new is None else "update",
                    (change.new or change.old).metadata.name,
                )
            )
        )
        fake.end_watches.set()
        fake.end_watches = asyncio.Event()
        await made.wait_listed(2, PATIENCE)
        expected = [("delete", "vanish"), ("update", "change"), ("delete", "remake"), ("add", "remake"), ("add", "new")]
        assert sorted(changes) == sorted(expected)
        assert changes.index(("delete", "remake")) < changes.index(("add", "remake"))
        assert seen == [4] * 5, "the store was replaced before any change was told"
        await eventually(lambda: made.state is State.WATCHING)


async def test_a_connection_cut_in_the_middle_of_a_line_loses_nothing(fake):
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        fake.raw.put_nowait(b'{"type":"ADDED","object":{"metadata":{"na')
        fake.raw.put_nowait(None)
        await fake.put("configmaps", "n", "a")
        await eventually(lambda: fake.lists == 2 and fake.watches == 2)
        assert changes == [("add", "n/a")]


@pytest.mark.parametrize("seen_away", [True, False])
async def test_a_server_that_was_away_is_listed_again(fake, seen_away):
    """It may have come back from a backup: a watch from a version that it does not have yet would stay silent."""
    await fake.put("configmaps", "n", "a")
    await fake.put("configmaps", "n", "b")
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)

        async def away(_request):
            return status(503, "ServiceUnavailable", "starting")

        if seen_away:
            fake.answers.append(away)
        fake.version, fake.events = 50, []
        del fake.objects["configmaps", "n", "b"]
        fake.raw.put_nowait(None)
        await made.wait_listed(2, PATIENCE)
        assert made.store.keys() == ["n/a"] and changes[-1] == ("delete", "n/b")
        await eventually(lambda: made.unbroken == 2)


async def test_from_a_failure_to_the_next_list_it_is_not_certain_what_has_happened(fake):
    """The server may be restored from a backup in between, which undoes what was told."""
    async with reflecting(fake) as (made, _):
        assert not made.live
        await made.wait_synced(PATIENCE)
        assert made.live
        await eventually(lambda: fake.watches == 1)
        await next_watch(fake, made)
        assert made.live, "it ended in good order and went on"
        release, watches = asyncio.Event(), fake.watches

        async def hold(_request):
            await release.wait()

        fake.answers.append(hold)  # the next list
        fake.raw.put_nowait(None)
        await eventually(lambda: fake.lists == 2)
        assert not made.live
        release.set()
        await made.wait_listed(2, PATIENCE)
        assert made.live
        await eventually(lambda: fake.watches > watches)
        assert made.live


async def test_a_watch_that_goes_on_too_late_may_have_missed_a_restore(fake, monkeypatch):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        monkeypatch.setattr(module, "AT_ONCE", -1.0)
        await next_watch(fake, made)
        await eventually(lambda: made.unbroken is None)
        assert not made.live


async def test_it_tells_when_the_list_behind_its_store_began(fake):
    async with reflecting(fake) as (made, _):
        assert made.listed_from == 0
        before = module.moment()
        await made.wait_synced(PATIENCE)
        first = made.listed_from
        assert before < first < module.moment()
        made.relist()
        assert made.listed_from == first, "that list is not complete"
        await made.wait_listed(2, PATIENCE)
        assert made.listed_from > first


async def test_backoff_grows_is_explained_and_ends(fake, monkeypatch, caplog):
    monkeypatch.setattr(module, "FIRST_BACKOFF", 0.02)
    times = []

    async def broken(_request):
        times.append(time.monotonic())
        return status(500, "InternalError", "etcd is on fire")

    fake.answers += [broken] * 6
    with caplog.at_level(logging.INFO, logger=module.__name__):
        async with reflecting(fake) as (made, _):
            await eventually(lambda: made.state is State.BACKOFF)
            assert made.error == "cluster fake: list /api/v1/configmaps?limit=500: etcd is on fire"
            with pytest.raises(TimeoutError, match=r"configmaps not listed within 0\.01 s: cluster fake: .* on fire"):
                await made.wait_synced(0.01)
            await eventually(lambda: made.state is State.WATCHING)
            assert made.error is None and (made.lists_started, made.lists_completed) == (7, 7)
    assert times[5] - times[4] >= 0.02 * 16 * 0.5, "the fifth pause is sixteen times the first, less the jitter"
    assert [record.getMessage() for record in caplog.records if record.name == module.__name__] == [
        "not following the API server",
        "following the API server again",
    ], "the same error is logged once"


async def test_what_is_watched_in_short_turns_is_not_left_unread_for_longer_than_one(fake, monkeypatch):
    monkeypatch.setattr(module, "FIRST_BACKOFF", 60.0)

    async def broken(_request):
        return status(500, "InternalError", "etcd is on fire")

    fake.answers += [broken] * 2
    began = time.monotonic()
    async with reflecting(fake, watch_seconds=(1, 1)) as (made, _):
        await made.wait_synced(PATIENCE)
    assert time.monotonic() - began < 2 * 60.0 * 0.5


async def test_a_watch_that_ends_at_once_every_time_backs_off(fake):
    fake.end_watches.set()
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.state is State.BACKOFF)
        assert made.error == "the watch ended at once"
        await asyncio.sleep(0.5)
        assert fake.watches <= 5


async def test_a_malformed_object_keeps_its_last_good_version_and_is_named_once(fake, caplog):
    await fake.put("configmaps", "n", "a", data={"k": "good"})
    with caplog.at_level(logging.WARNING, logger=malformed.__name__):
        async with reflecting(fake) as (made, changes):
            await made.wait_synced(PATIENCE)
            for _ in range(2):
                await fake.put("configmaps", "n", "a", data={"k": 1})
            await fake.put("configmaps", "n", "b")
            await eventually(lambda: "n/b" in made.store)
            assert made.store.get("n/a").data == {"k": "good"} and list(made.malformed) == ["n/a"]
            assert [record.object for record in caplog.records] == ["n/a"]
            await made.wait_listed(made.relist(), PATIENCE)
            assert made.store.get("n/a").data == {"k": "good"} and list(made.malformed) == ["n/a"]
            await fake.put("configmaps", "n", "a", data={"k": "better"})
            await eventually(lambda: made.store.get("n/a").data == {"k": "better"})
            assert list(made.malformed) == []
            await fake.put("configmaps", "n", "a", data={"k": 1})
            await fake.remove("configmaps", "n", "a")
            await eventually(lambda: "n/a" not in made.store)
            assert list(made.malformed) == [] and changes[-1] == ("delete", "n/a")


async def test_a_malformed_object_of_another_uid_does_not_hide_behind_the_old_one(fake):
    await fake.put("configmaps", "n", "a", data={"k": "good"})
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        record, fake.record = fake.record, lambda *_: asyncio.sleep(0)
        await fake.remove("configmaps", "n", "a")
        fake.record = record
        await fake.put("configmaps", "n", "a", data={"k": 1})
        await eventually(lambda: made.malformed)
        assert "n/a" not in made.store and changes[-1] == ("delete", "n/a")


def stand_in(broken):
    return ConfigMap(metadata=broken.metadata, data={"unread": broken.error})


async def test_what_was_never_read_stands_for_itself_until_it_is_read_or_gone(fake):
    """In a list, in a watch, and made again under its name. It says so all the time."""
    states = []
    await fake.put("configmaps", "n", "listed", data={"k": 1})
    async with reflecting(fake, unread=stand_in, on_state=lambda: states.append(made.untaken)) as (made, changes):
        await made.wait_synced(PATIENCE)
        await fake.put("configmaps", "n", "watched", data={"k": 1})
        await eventually(lambda: "n/watched" in made.store)
        listed, sent = made.store.get("n/listed"), fake.objects["configmaps", "n", "listed"]
        assert "unread" in listed.data and listed.metadata.uid == sent["metadata"]["uid"]
        assert changes == [("add", "n/listed"), ("add", "n/watched")]
        assert made.untaken.startswith("2 configmaps cannot be read, such as n/listed: Expected `str`, got `int`")
        assert states[-1] == made.untaken, "it was told"
        assert gauge("fake", "configmaps") == 2
        await made.wait_listed(made.relist(), PATIENCE)
        assert len(changes) == 2, "a list of the same brings nothing"

        await fake.put("configmaps", "n", "listed", data={"k": "good"})
        await eventually(lambda: changes[2:] == [("update", "n/listed")])
        record, fake.record = fake.record, lambda *_: asyncio.sleep(0)
        await fake.remove("configmaps", "n", "watched")
        fake.record = record
        await fake.put("configmaps", "n", "watched", data={"k": 2})
        await eventually(lambda: changes[3:] == [("delete", "n/watched"), ("add", "n/watched")])
        await fake.remove("configmaps", "n", "watched")
        await eventually(lambda: changes[5:] == [("delete", "n/watched")])
        assert made.untaken is None and states[-1] is None
        assert gauge("fake", "configmaps") is None


async def test_malformed_objects_of_two_watches_of_one_kind_are_told_together(fake):
    """Such as the UserClusters of two namespaces, and Clusters of two API groups."""
    for namespace in ("a", "b", "b2"):
        await fake.put("configmaps", namespace[0], namespace, data={"k": 1})
    async with reflecting(fake, namespace="a") as (first, _):
        await first.wait_synced(PATIENCE)
        async with reflecting(fake, namespace="b") as (second, _):
            await second.wait_synced(PATIENCE)
            assert gauge("fake", "configmaps") == 3
            await fake.put("configmaps", "b", "b", data={"k": "good"})
            await eventually(lambda: len(second.malformed) == 1)
            assert gauge("fake", "configmaps") == 2
        assert gauge("fake", "configmaps") == 1, "the other watch has ended"
    assert gauge("fake", "configmaps") is None


def gauge(cluster, resource):
    labels = {"server": cluster, "resource": resource}
    return REGISTRY.get_sample_value("seedquota_malformed_objects", labels)


@pytest.mark.parametrize(
    "metadata", [b'{"name": "\xda", "namespace": "n", "uid": "u"}', b'{"name": "b", "namespace": "n"}']
)
async def test_a_list_in_which_nobody_can_tell_what_is_missing_takes_nothing_away(fake, metadata):
    """The one without a name may be any that is not listed."""
    await fake.put("configmaps", "n", "a")
    body = b'{"metadata": {"resourceVersion": "101"}, "items": [{"metadata": %b, "data": {"k": 1}}]}' % metadata

    async def nameless(_request):
        return web.Response(body=body)

    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.state is State.WATCHING)
        fake.answers.append(nameless)
        made.relist()
        await eventually(lambda: made.error is not None)
        assert "the name or uid of one cannot be read" in made.error
        assert list(made.store.keys()) == ["n/a"] and changes == [("add", "n/a")]
        await eventually(lambda: made.lists_completed == 3)
        fake.raw.put_nowait(b'{"type": "DELETED", "object": {"metadata": %b, "data": {"k": 1}}}\n' % metadata)
        await eventually(lambda: made.lists_completed == 4)  # only a list tells which one it was


async def test_relist_gives_a_list_that_began_after_it_was_asked_for(fake):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.state is State.WATCHING)
        hold, reached = asyncio.Event(), asyncio.Event()

        async def slow(_request):
            reached.set()
            await hold.wait()

        fake.answers.append(slow)
        first = made.relist()
        await reached.wait()
        second = made.relist()  # while the first is under way: that one began too early
        assert second == first + 1
        hold.set()
        await made.wait_listed(second, PATIENCE)
        assert fake.lists == 3 and made.lists_completed == second
        await eventually(lambda: made.state is State.WATCHING)


async def test_an_impatient_relist_does_not_wait_for_a_backoff(fake, monkeypatch):
    monkeypatch.setattr(module, "FIRST_BACKOFF", 10 * PATIENCE)

    async def unavailable(_request):
        return status(503, "ServiceUnavailable")

    fake.answers.append(unavailable)
    async with reflecting(fake) as (made, _):
        await eventually(lambda: made.state is State.BACKOFF)
        await made.wait_listed(made.relist(impatient=True), PATIENCE)
        assert made.synced.is_set()


async def test_garbage_on_the_watch_leads_to_a_new_list(fake):
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        fake.raw.put_nowait(b"<html>\n")
        await made.wait_listed(2, PATIENCE)
        await fake.put("configmaps", "n", "a")
        await eventually(lambda: changes == [("add", "n/a")])


async def test_a_handler_that_fails_stops_nothing(fake, caplog):
    async with reflecting(fake) as (made, _):
        await made.wait_synced(PATIENCE)

        def fail(_change):
            raise RuntimeError("oops")

        made._on_change = fail
        await fake.put("configmaps", "n", "a")
        await fake.put("configmaps", "n", "b")
        await eventually(lambda: len(made.store) == 2)
        assert made.error is None
        assert made.untaken == "2 configmaps cannot be taken in, such as n/a: RuntimeError"
    assert [(r.getMessage(), r.whose) for r in caplog.records] == [
        ("unexpected error", "fake configmaps n/a"),
        ("unexpected error", "fake configmaps n/b"),
    ]


async def test_a_handler_that_failed_is_called_again_when_the_watch_has_ended(fake):
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        takes = made._on_change

        def fail(_change):
            raise UnicodeDecodeError("utf-8", b"\xda", 0, 1, "invalid")

        made._on_change = fail
        for name in ("stays", "goes", "gone"):
            await fake.put("configmaps", "n", name)
        await eventually(lambda: len(made.store) == 3)
        await fake.remove("configmaps", "n", "gone")
        await eventually(lambda: len(made.store) == 2)
        made._on_change = takes
        await fake.remove("configmaps", "n", "goes")
        await eventually(lambda: made.untaken == "2 configmaps cannot be taken in, such as n/stays: UnicodeDecodeError")
        await made.wait_listed(made.relist(), PATIENCE)
        assert changes == [("delete", "n/goes"), ("add", "n/stays"), ("delete", "n/gone")]
        assert made.untaken is None


async def test_others_run_while_a_handler_is_called_again_for_very_many():
    made = Reflector(SimpleNamespace(name="fake"), CONFIGMAPS, on_change=lambda _change: None)
    for number in range(30_000):
        found = ConfigMap(metadata=ObjectMeta(name=f"c{number}", uid=str(number)))
        made._untaken[found.metadata.key, found.metadata.uid] = Change(found, None), "RuntimeError"
    async with counted_turns() as turns:
        await made._tell_again()
        assert turns() > 10 and made.untaken is None


async def test_selectors_and_namespace_are_sent_with_list_and_watch(fake):
    async with reflecting(fake, namespace="n", label_selector="a=b,c", field_selector="metadata.name=x") as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        for _, path in fake.requests:
            assert path.startswith("/api/v1/namespaces/n/configmaps?")
            assert "labelSelector=a%3Db%2Cc&fieldSelector=metadata.name%3Dx" in path


async def test_many_events_at_once_arrive_in_order(fake):
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        lines = []
        for number in range(3000):
            meta = {"name": f"c{number}", "namespace": "n", "uid": str(number), "resourceVersion": str(1000 + number)}
            lines.append(json.dumps({"type": "ADDED", "object": {"metadata": meta}}).encode() + b"\n")
        fake.raw.put_nowait(b"".join(lines))
        await eventually(lambda: len(made.store) == 3000)
        assert changes == [("add", f"n/c{number}") for number in range(3000)]


async def test_what_takes_more_than_its_bound_is_not_followed_and_the_store_stays_as_it_was(fake, monkeypatch):
    """In the first list, and where it comes by the watch. What shrinks is followed again."""
    bounded = replace(CONFIGMAPS, most=2000, weigh=lambda found: len(found.data.get("k", "")))
    monkeypatch.setattr(module, "MAX_BACKOFF", 0.2)
    for name in "ab":
        await fake.put("configmaps", "n", name, data={"k": "x" * 900})
    async with reflecting(fake, resource=bounded) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.state is State.WATCHING)
        await fake.put("configmaps", "n", "c", data={"k": "x" * 900})
        await eventually(lambda: made.error is not None and "take more than" in made.error)
        assert sorted(made.store.keys()) == ["n/a", "n/b"]
        await fake.put("configmaps", "n", "a", data={"k": "x" * 10})
        await eventually(lambda: made.error is None and len(made.store) == 3)
    await fake.put("configmaps", "n", "d", data={"k": "x" * 900})
    async with reflecting(fake, resource=bounded) as (made, _):
        await eventually(lambda: made.error is not None and "take more than" in made.error)
        assert not made.synced.is_set()


async def test_changes_of_a_list_are_told_with_turns_of_others_between_and_what_is_gone_last(fake, monkeypatch):
    """A user cluster's list may have thousands, and each costs something to count."""
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    for number in range(5):
        await fake.put("configmaps", "n", f"old-{number}")
    async with reflecting(fake) as (made, changes):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: fake.watches == 1)
        changes.clear()
        record, fake.record = fake.record, lambda *_: asyncio.sleep(0)  # what happens now, nobody sees
        for number in range(5):
            await fake.remove("configmaps", "n", f"old-{number}")
            await fake.put("configmaps", "n", f"new-{number}")
        fake.record = record
        listed = asyncio.create_task(made.wait_listed(made.relist(), PATIENCE))
        seen = set()
        while not listed.done():
            seen.add(len(changes))
            await asyncio.sleep(0)
        await listed
        assert [kind for kind, _ in changes] == ["add"] * 5 + ["delete"] * 5
        assert len(seen) > 5, "others had their turn between the changes"


async def test_what_cannot_be_read_is_bounded_as_well(fake, monkeypatch):
    bounded = replace(CONFIGMAPS, most=5 * 1024, weigh=lambda _found: 1)
    async with reflecting(fake, resource=bounded) as (made, _):
        await made.wait_synced(PATIENCE)
        await eventually(lambda: made.state is State.WATCHING)
        for number in range(20):
            await fake.put("configmaps", "n", f"c{number}", data={"k": 5})
        await eventually(lambda: made.error is not None and "take more than" in made.error)
        assert len(made.malformed) <= 6


async def test_a_long_list_is_taken_up_in_pieces_and_seen_at_once(monkeypatch):
    """A tenant may have 200,000 objects: each step over all of them took up to 0.4 s of the event loop in one piece."""
    monkeypatch.setattr(pieces, "PIECE_SECONDS", 0.0)
    made = Reflector(SimpleNamespace(name="c"), CONFIGMAPS, indexes={"all": lambda _found: ["all"]})
    items = [
        ConfigMap(metadata=ObjectMeta(name=f"m{number}", uid=str(number), resource_version="1")) for number in range(50)
    ]
    seen = []

    async def look():
        while True:
            seen.append((len(made.store), len(made.store.by_index("all", "all"))))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    await made._replace(Listing(items, "1"))
    assert len(seen) >= 150, "once for each object where they are read, indexed and told"
    assert set(seen) == {(0, 0), (50, 50)}
    seen.clear()
    await made._replace(Listing([], "2"))
    assert len(seen) >= 50
    assert len(made.store) == 0
    looking.cancel()
