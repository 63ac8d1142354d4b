"""The routes of the platform's people. Pure."""

from __future__ import annotations

from master.apiserver import platform_types as types
from master.apiserver.route import Route

_CHANGED = {"ETag": "The version, for If-Match."}
_DEFAULT = "/api/v1/defaults/{kind}"
_SEED = "/api/v1/seeds/{name}"

PLATFORM = (
    Route(
        "POST",
        "/api/v2/quotas/{name}/preview",
        "preview_quota",
        "What other limits would do to a quota",
        "Nothing is written. `over` is what is used beyond a limit: it stays, and nothing more is admitted.",
        "Quotas",
        types.LimitPreview,
        body=types.LimitsAsked,
        problems=(403, 404),
        reads=True,
    ),
    Route(
        "GET",
        _DEFAULT,
        "get_default",
        "The default quota of projects, or of organizations",
        "A project or organization without a quota of its own has one that follows it.",
        "Platform",
        types.DefaultLimits,
        problems=(403, 404),
        headers=_CHANGED,
    ),
    Route(
        "PUT",
        _DEFAULT,
        "put_default",
        "Set a default quota",
        "The quotas that follow it change with it. Subjects without a quota get one.",
        "Platform",
        types.DefaultLimits,
        body=types.DefaultUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_CHANGED,
    ),
    Route(
        "DELETE",
        _DEFAULT,
        "delete_default",
        "Remove a default quota",
        "The quotas that follow it go. Subjects without another quota are unlimited then.",
        "Platform",
        None,
        204,
        problems=(403, 404, 409),
        conditional=True,
    ),
    Route(
        "POST",
        f"{_DEFAULT}/preview",
        "preview_default",
        "Whom a default quota would touch, and who would be over",
        "Nothing is written.",
        "Platform",
        types.DefaultPreview,
        body=types.DefaultUpdate,
        problems=(403, 404),
        reads=True,
    ),
    Route(
        "GET",
        "/api/v1/seeds",
        "list_seeds",
        "The seeds, by name",
        "It needs the right to list Seeds.",
        "Platform",
        list[types.SeedState],
        problems=(403,),
    ),
    Route(
        "GET",
        _SEED,
        "get_seed",
        "One seed, what it holds, and what draining it would free",
        "It needs the rights to get this Seed and to list ResourceQuotas. Amounts are those of the last reports.",
        "Platform",
        types.SeedHoldings,
        problems=(403, 404),
        headers=_CHANGED,
    ),
    Route(
        "PUT",
        f"{_SEED}/state",
        "put_seed_state",
        "Drain a seed, or let it have capacity again",
        "It needs the rights to update this Seed and to list ResourceQuotas. A seed is declared lost with `seedquota "
        "seed lost` alone.",
        "Platform",
        types.SeedHoldings,
        body=types.SeedStateUpdate,
        problems=(403, 404, 409),
        conditional=True,
        headers=_CHANGED,
    ),
)
