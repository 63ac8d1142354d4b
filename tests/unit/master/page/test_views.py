"""What pages show of quotas and seeds, and above all what they do not show as good."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from common.api.types import WireGuarantee
from common.quota import quantity, resources
from master.apiserver import capacity, serializers
from master.apiserver.capacity import Allocated, OrganizationQuotas
from master.apiserver.capacity import Amount as Counted
from master.cache.allocations import Use
from master.cache.objects import OverrideStatus
from master.page.handlers import Shown
from master.page.views import amounts, bars, organization, overview, plots, project, quotas, seeds, settings
from master.page.views import quota as quota_view
from master.page.views.quotas import Filter
from master.page.views.times import moment
from tests.unit.master.page.builders import CURRENT, ENFORCED, HEALTHY, NOW, quota, seed
from tests.unit.master.page.test_fitting import html


@pytest.mark.parametrize(
    ("name", "given", "text", "approximate"),
    [
        ("cpu", "64", "64 cores", False),
        ("cpu", "1", "1 core", False),
        ("cpu", "60500m", "60.5 cores", False),
        ("cpu", "1u", "0 cores", True),
        ("memory", "232Gi", "232 Gi", False),
        ("memory", "64G", "59.6 Gi", True),
        ("memory", "0", "0", False),
        ("memory", "1000", "1,000 B", False),
        ("storage", "1536Gi", "1.5 Ti", False),
        ("machines", "12345", "12,345", False),
        ("nvidia.com/gpu", "8", "8", False),
        ("requests.memory", "1Gi", "1 Gi", False),
    ],
)
def test_amounts_are_said_as_people_say_them_and_what_is_rounded_says_so(
    name: str, given: str, text: str, approximate: bool
) -> None:
    found = amounts.amount(name, quantity.parse(given))
    assert (found.text, found.approximate) == (text, approximate)
    assert quantity.parse(found.exact) == quantity.parse(given)


def test_a_bar_has_what_is_counted_reserved_and_idle_and_they_add_up() -> None:
    held = [
        {"name": "eu-1", "state": "Current", "localUsage": {"cpu": "40"}, "granted": {"cpu": "43"}},
        {"name": "us-1", "state": "Stale", "localUsage": {"cpu": "20"}, "granted": {"cpu": "20"}},
        {"name": "gone", "state": "Lost", "localUsage": {"cpu": "1"}, "granted": {"cpu": "60"}},
    ]
    (bar,) = bars.of_quota(quota(hard={"cpu": "64"}, used={"cpu": "60"}, reserved={"cpu": "4"}, seeds=held))
    assert bar.used is not None and bar.free is not None and bar.idle is not None
    assert (bar.used.text, bar.free.text, bar.idle.text, bar.percent, bar.level) == (
        "60 cores", "4 cores", "3 cores", 93, "near",
    )  # fmt: skip
    assert [each.seed for each in bar.idle_by_seed] == ["eu-1"]
    assert [(part.kind, part.length) for part in bar.parts] == [("counted", 87.5), ("reserved", 6.25), ("idle", 4.688)]


@pytest.mark.parametrize(
    ("limit", "used", "level"),
    [("64", "64", "full"), ("64", "65", "over"), ("64", "57", "fine"), ("64", "58", "near"), ("0", "0", "full")],
)
def test_a_bar_says_how_near_the_limit_is(limit: str, used: str, level: str) -> None:
    (bar,) = bars.of_quota(quota(hard={"cpu": limit}, used={"cpu": used}))
    assert bar.level == level
    assert sum(part.length for part in bar.parts) <= 100.001


def test_what_is_not_counted_is_unknown_and_never_zero() -> None:
    never, part = quota(used=None), quota("part", {"cpu": "64", "x.io/y": "1"}, {"cpu": "1"})
    for bar in (*bars.of_quota(never), bars.of_quota(part)[1]):
        assert (bar.level, bar.used, bar.free, bar.percent, bar.parts) == ("unknown", None, None, None, ())
    assert quotas.row(never).level == "unknown" and quotas.row(never).peak is None
    assert "unknown" in quotas.row(part).states


def test_a_quota_without_a_limit_is_not_unknown() -> None:
    row = quotas.row(quota("empty", {}, {}))
    assert (row.level, row.peak, "unknown" in row.states) == ("fine", None, False)


@pytest.mark.parametrize(
    ("subject", "limited"),
    [
        ({"kind": "project", "name": "alpha"}, "project/alpha"),
        ({"kind": "namespaces", "selector": {"matchLabels": {"owner": "ann"}}}, "owner=ann"),
    ],
)
def test_the_page_of_a_quota_says_all_that_narrows_its_subject(subject: Any, limited: str) -> None:
    found = quota(used={"cpu": "1"})
    found.spec["subject"] = subject
    assert limited in quota_view.page(found, [], NOW, made_from="", version="v").limited


def guaranteeing(**more: Any) -> Any:
    """Of an organization: 40 of 64 are used, and 13 more are kept for alpha, four of them on a seed."""
    held = [{"name": "eu-1", "state": "Current", "granted": {"cpu": "46"}, "localUsage": {"cpu": "40"}}]
    found = quota("org-acme", used={"cpu": "40"}, subject=("organization", "acme"), seeds=held, **more)
    found.status.guarantees = [WireGuarantee(project="alpha", hard={"cpu": "16"}, used={"cpu": "3"})]
    return found


def test_what_is_kept_for_projects_is_the_end_of_the_bar_and_no_part_of_what_is_idle() -> None:
    (bar,) = bars.of_quota(guaranteeing())
    assert bar.free is not None and bar.kept is not None
    assert (bar.free.text, bar.kept.text) == ("24 cores", "13 cores")
    assert [(part.kind, part.begin, part.length) for part in bar.parts] == [
        ("counted", 0.0, 62.5), ("idle", 62.5, 9.375), ("kept", 79.688, 20.312),
    ]  # fmt: skip
    full = guaranteeing()
    full.status.global_usage = {"cpu": "66"}
    (bar,) = bars.of_quota(full)
    assert (bar.kept, [part.kind for part in bar.parts]) == (None, ["counted", "over"])


def test_a_quota_says_what_is_guaranteed_to_whom_and_what_of_it_is_in_force() -> None:
    view = quota_view.page(guaranteeing(), [], NOW, made_from="", version="v")
    assert [(each.project, each.guaranteed.text, each.used.text, each.unused.text) for each in view.guarantees] == [
        ("alpha", "16 cores", "3 cores", "13 cores")
    ]
    mine = quota(used={"cpu": "3"}, guaranteed={"cpu": "16"})
    for in_force, said in ((None, None), ({}, "0 cores"), (resources.parse({"cpu": "16"}), "16 cores")):
        (bar,) = quota_view.page(mine, [], NOW, made_from="", version="v", in_force=in_force).bars
        assert bar.guaranteed is not None and bar.guaranteed.text == "16 cores"
        assert (bar.in_force.text if bar.in_force is not None else None) == said


def test_the_pages_show_guarantees_and_what_is_kept() -> None:
    def shown(template: str, view: Any, **values: Any) -> str:
        values = {"view": view, "may_edit": False, "may_quota": False, "past": plots.NOTHING, **values}
        return html(Shown(template, "x", values, "", ""))

    mine = quota(used={"cpu": "3"}, guaranteed={"cpu": "16"})
    of_organization = quota_view.page(guaranteeing(), [], NOW, made_from="", version="v")
    text = shown("quota.html", of_organization)
    assert "Of it kept for projects" in text and "Guaranteed to projects" in text
    assert "cpu: 40 cores used of 64 cores, 24 cores free, of it 6 cores idle on seeds, of it 13 cores kept" in text
    of_project = project.page("alpha", "", "", serializers.combined([mine], "", parents=[guaranteeing()]), NOW)
    text = shown("project.html", of_project)
    assert "<dt>Guaranteed</dt>" in text and "</span> fits" not in text
    text = shown("project.html", project.page("alpha", "", "", serializers.combined([mine], ""), NOW))
    assert "of it <span>0 cores</span> fits" in text
    view = organization.page("acme", "", [], capacity.organization_quotas([guaranteeing()], {}), {}, {}, "v")
    text = shown("organization.html", view, whole=amounts.whole)
    assert "Of it kept" in text and "free for these alone" in text


def raised(**status: Any) -> Any:
    """A quota with one override that is in force, and one of which the master has not said anything yet."""
    given = {"until": "2026-12-31T00:00:00Z", "quota": {"cpu": "128"}, "reason": "launch"}
    pending = {"until": "2027-01-31T00:00:00Z", "quota": {"memory": "1Gi"}}
    overridden = ("Overridden", "True", "Raised")
    found = quota(used={"cpu": "1"}, conditions=(ENFORCED, CURRENT, overridden), overrides=[given, pending])
    found.status.overrides = [msgspec.convert({**given, "state": "InForce", **status}, OverrideStatus)]
    return found


def test_what_is_raised_is_shown_with_its_end_by_quota_project_and_organization() -> None:
    found = raised()
    shown = serializers.combined([found], "")
    for lines in (
        quota_view.page(found, [], NOW, made_from="", version="v").overrides,
        project.page("alpha", "", "", shown, NOW).overrides,
    ):
        assert [(each.until, each.reason, each.state) for each in lines] == [
            ("2026-12-31T00:00:00Z", "launch", "in force"), ("2027-01-31T00:00:00Z", "", "not decided yet"),
        ]  # fmt: skip
        assert [(name, amount.text) for name, amount in lines[0].amounts] == [("cpu", "128 cores")]


def test_a_list_says_until_when_a_limit_is_raised_and_nothing_where_none_is() -> None:
    ended = raised(state="Ended")
    assert quotas.row(raised()).raised_until == "2026-12-31T00:00:00Z"
    assert quotas.row(ended).raised_until == ""
    nothing = raised()
    nothing.status.conditions = []
    assert quotas.row(nothing).raised_until == ""


def rows(*found: Any) -> list[quotas.Row]:
    return [quotas.row(each) for each in found]


def test_of_a_list_only_the_rows_that_are_shown_have_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    of_quota = bars.of_quota
    monkeypatch.setattr(bars, "of_quota", lambda found: drawn.append(found.metadata.name) or of_quota(found))
    found = rows(*(quota(f"q{number}", used={"cpu": str(number)}) for number in range(100)))
    shown = overview.overview([], found, [], NOW).top
    assert drawn == []
    peaks = [row.peak for row in shown]
    assert peaks[0] is not None and (peaks[0].name, peaks[0].percent) == ("cpu", 154)
    assert len(shown) == len(drawn) == overview.TOP


def test_a_row_and_its_bars_say_the_same_and_what_cannot_be_read_is_said() -> None:
    for found in rows(
        quota(hard={"cpu": "8", "memory": "1Gi", "pods": "0"}, used={"cpu": "7", "pods": "0"}), quota(used=None)
    ):
        assert [(each.name, each.level, each.percent) for each in bars.standings(found.quota)] == [
            (bar.name, bar.level, bar.percent) for bar in found.bars
        ]
        assert not found.error
    unreadable, odd_seed = (
        quota(used={"cpu": "many"}),
        quota(used={"cpu": "1"}, seeds=[{"name": "eu", "granted": {"cpu": "x"}}]),
    )
    assert quotas.row(unreadable).level == "unknown" and "many" in quotas.row(unreadable).error
    assert quotas.row(odd_seed).peak is None and "x" in quotas.row(odd_seed).error


async def test_a_row_is_made_again_only_when_its_quota_has_changed() -> None:
    kept, one, two = quotas.Rows(), quota("one", used={"cpu": "1"}), quota("two", used={"cpu": "1"})
    before = await kept.of([one, two])
    after = await kept.of([one, quota("two", used={"cpu": "2"})])
    assert after[0] is before[0] and after[1] is not before[1]
    assert [row.name for row in await kept.of([one])] == ["one"]
    assert (await kept.of([one, two]))[1] is not before[1]  # of a quota that was gone nothing is kept


async def test_while_thousands_of_rows_are_made_others_run() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    many = {f"x.io/{number}": str(number) for number in range(100)}
    await quotas.Rows().of([quota(f"q{number}", many, many) for number in range(2000)])
    beside.cancel()
    assert turns > 5


def test_quotas_are_searched_filtered_sorted_and_cut_into_pages() -> None:
    found = rows(
        *(quota(f"q{number:03}", used={"cpu": str(number % 60)}, subject=("project", f"p{number}"))
          for number in range(120)),
        quota("over", used={"cpu": "80"}, subject=("organization", "acme")),
        quota("stale", used={"cpu": "1"}, conditions=(ENFORCED, ("UsageCurrent", "False", "SeedUnreachable"))),
        quota("unproven", used={"cpu": "1"}, conditions=(CURRENT, ("Enforced", "Unknown", "SeedNotSynced"))),
    )  # fmt: skip
    first = quotas.listed(found, Filter())
    assert (first.matching, first.total, first.pages, len(first.rows)) == (123, 123, 3, quotas.PER_PAGE)
    assert [row.name for row in first.rows[:3]] == ["over", "q059", "q119"]
    assert quotas.listed(found, Filter(page=99)).filter.page == 3
    for wanted, names in (
        (Filter(search="P11", order="name"), ["q011", *(f"q{number}" for number in range(110, 120))]),
        (Filter(kind="organization"), ["over"]),
        (Filter(state="stale"), ["stale"]),
        (Filter(state="unenforced"), ["unproven"]),
        (Filter(state="over", search="nothing"), []),
    ):
        assert [row.name for row in quotas.listed(found, wanted).rows] == names, wanted


def test_the_address_of_a_list_is_read_with_what_makes_no_sense_left_out() -> None:
    assert quotas.read_filter({"q": " a ", "kind": "project", "state": "full", "sort": "name", "page": "2"}) == Filter(
        "a", "project", "full", "name", 2
    )
    wrong = {"q": "x" * 999, "kind": "<script>", "state": "fine", "sort": "'", "page": "-1"}
    assert quotas.read_filter(wrong) == Filter("x" * 253)
    assert quotas.read_filter({"page": "9" * 5000}).page == 1
    assert Filter("a b&c", state="full", page=3).query(page=4) == "q=a+b%26c&state=full&page=4"


def tones(*tiles: overview.Tile) -> list[str]:
    return [tile.tone for tile in tiles]


def test_the_overview_is_green_only_where_everything_is_known_and_good() -> None:
    fine = [quota("one", used={"cpu": "1"})]
    view = overview.overview(fine, rows(*fine), [seed("eu-1", *HEALTHY)], NOW)
    assert tones(*view.tiles) == ["good"] * 5


@pytest.mark.parametrize(
    ("found", "known", "expected"),
    [
        ([], [], ["unknown"] * 5),
        ([quota(used=None)], [seed("eu-1")], ["unknown"] * 5),
        (
            [quota(used={"cpu": "80"}, conditions=(ENFORCED, CURRENT, ("Exceeded", "True", "LimitLowered")))],
            [seed("eu-1", *HEALTHY)],
            ["warn", "good", "warn", "good", "good"],
        ),
        (
            [quota(used={"cpu": "80"}, conditions=(ENFORCED, CURRENT, ("Exceeded", "True", "UsageNotAdmitted")))],
            [seed("eu-1", *HEALTHY)],
            ["bad", "good", "warn", "good", "good"],
        ),
        (
            [quota(used={"cpu": "1"}, conditions=(CURRENT, ("Enforced", "False", "WebhookNotServing")))],
            [seed("eu-1", ("Connected", "False", "Unreachable"), ("WebhookServing", "Unknown", "NotConnected"))],
            ["good", "bad", "good", "bad", "unknown"],
        ),
    ],
)
def test_the_overview_tells_what_is_wrong_and_what_nobody_knows(found: Any, known: Any, expected: list[str]) -> None:
    assert tones(*overview.overview(found, rows(*found), known, NOW).tiles) == expected


def test_after_a_silence_of_the_master_nothing_is_green() -> None:
    fine, known = [quota(used={"cpu": "1"})], [seed("eu-1", *HEALTHY, seen="2026-11-20T09:50:00Z")]
    view = overview.overview(fine, rows(*fine), known, NOW)
    assert view.silent == "10m"
    assert "good" not in tones(*view.tiles)


def test_stale_seeds_are_named_with_their_oldest_report() -> None:
    late = {"name": "us-1", "state": "Stale", "lastReportTime": "2026-11-20T09:53:00Z"}
    later = {**late, "lastReportTime": "2026-11-20T09:58:00Z"}
    found = [quota("a", used={"cpu": "1"}, seeds=[later]), quota("b", used={"cpu": "1"}, seeds=[late])]
    (stale,) = overview.overview(found, rows(*found), [], NOW).stale
    assert (stale.name, stale.since.text, stale.quotas) == ("us-1", "7m ago", 2)


def test_seeds_in_trouble_come_first_and_without_a_condition_nothing_is_known() -> None:
    known = [seed("fine", *HEALTHY), seed("new"), seed("down", ("Ready", "False", "Unreachable"))]
    assert [(row.name, row.tone) for row in seeds.rows(known, NOW)] == [
        ("down", "bad"), ("new", "unknown"), ("fine", "good"),
    ]  # fmt: skip


def test_seeds_are_cut_into_pages() -> None:
    known = seeds.rows([seed(f"s{number:03}") for number in range(150)], NOW)
    assert [(len(view.rows), view.page, view.pages) for view in (seeds.listed(known, page) for page in (0, 2, 9))] == [
        (100, 1, 2), (50, 2, 2), (50, 2, 2),
    ]  # fmt: skip


def test_the_page_of_a_seed_says_which_quotas_it_may_have_that_no_status_names() -> None:
    line = {"name": "eu-1", "state": "Current", "localUsage": {"cpu": "1"}, "granted": {"cpu": "3"}}
    named, hidden = quota("named", used={"cpu": "1"}, seeds=[line]), quota("hidden", used={"cpu": "1"})
    hidden.status.seeds_omitted = 5
    view = seeds.page(seed("eu-1", *HEALTHY), [named, hidden], NOW)
    assert [each.quota for each in view.quotas] == ["named"] and view.perhaps == 1
    assert view.quotas[0].shares[0].idle.text == "2 cores"


def test_an_organization_shows_what_is_unlimited_and_what_is_not_counted_as_that() -> None:
    shown = OrganizationQuotas(
        capacity=[Counted(type="clusters", amount=5), Counted(type="servers", amount=10)],
        free=[Counted(type="servers", amount=2)],
        kept=[Counted(type="servers", amount=1)],
        allocated=[
            Allocated(type="gpus", amount=3, committed=3, reserved=0),
            Allocated(type="servers", amount=8, committed=5, reserved=3),
        ],
    )
    clusters, gpus, servers = organization.lines(shown)
    assert (clusters.level, clusters.allocated, clusters.free) == ("unknown", None, None)
    assert (gpus.capacity, gpus.percent, gpus.free) == (None, None, None)
    assert (servers.percent, servers.committed_share, servers.reserved_share) == (80, 50.0, 30.0)
    assert (amounts.whole("memory", 128 << 30).text, amounts.whole("servers", 1200).text) == ("128 Gi", "1,200")
    view = organization.page("acme", "", [], shown, {"beta": {}, "alpha": {"servers": Use(5, 3)}}, {}, "v")
    assert [(line.project, line.uses) for line in view.projects] == [("alpha", (Use(5, 3),)), ("beta", (None,))]


def test_settings_name_whom_a_default_touches() -> None:
    def of(name: str, labels: dict[str, str] | None = None) -> Any:
        found = quota(f"project-{name}", used={"cpu": "1"}, subject=("project", name))
        found.metadata.labels.update(labels or {})
        return found

    followed, own = of("a", {"seedquota.io/default": "true"}), of("b")
    view = settings.page(None, [followed, own], ["a", "b", "c"], [])
    project, _ = view.defaults
    assert (project.follow, project.own, project.without, project.limits) == (["a"], 1, ["c"], None)
    assert not view.exists


@pytest.mark.parametrize("time", ["", "never", "2026-99-99T00:00:00Z", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_not_known_is_not_told(time: str) -> None:
    assert moment(time, NOW).text == ""


def test_a_time_is_told_relative_and_exact() -> None:
    for given in ("2026-11-20T09:53:00Z", "2026-11-20T11:53:00+02:00", "2026-11-20T09:53:00"):
        assert moment(given, NOW) == ("7m ago", "2026-11-20T09:53:00Z")
    assert moment("2026-11-20T09:53:00.250Z", NOW) == ("6m ago", "2026-11-20T09:53:00.250Z")
