"""What the seed's leader does next to one account (protocol.md, rules 3.4 and 4.4). Pure: facts in, one step out.

1. Another leader's epoch in it: claim it, and list the sources anew before anything is counted. If nobody alive led
   before us, or nobody has claimed it since that was so, it is fenced in the same write: the ledger may have been
   restored from a backup meanwhile.
2. Another life of the master's ledger speaks: fence.
3. The master has seen more of it than the ledger knows, or the copy shows a report of a later write of it: a new life,
   fenced. The master speaks to another life of the account: fenced, in doubt.
4. Fenced and answered: recount every source, then open. Where the ledger may know nothing of what was admitted
   last, only after that cannot be on its way any more. A fenced account admits nothing, so this time begins with the
   fence, and also passes while the master has not answered.
5. Recalled: give back what is idle.
6. Withdrawn from this seed: close it. It gives back everything, and is fenced, so it is counted anew before it opens.

What an account that admits nothing waits for is told by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from common.api.account_waits import WaitReason
from common.quota import account as accounts
from common.quota import fencing, resources
from common.quota.account import Account, Grant
from common.quota.escrow import Report

WAIT_FOR_SOURCES = 0.5  # seconds before looking again whether every source was listed; their news come sooner


class SourceFacts(msgspec.Struct, frozen=True):
    """`countable`: a list that began after our epoch was written is complete. `unreachable`: none can be had now."""

    key: str
    countable: bool
    unreachable: bool


class Progress(msgspec.Struct, frozen=True):
    """What the leader remembers of one account within its term.

    `claimed` is the term under which lists were demanded, and `life` the life of the account that they are for: one
    that began since, in a ledger that went back, may have been another leader's again. `fenced_since` is the time
    (monotonic) at which it was first seen fenced, and was not open since. `doubted` is whether it was noticed that the
    ledger cannot be trusted, `relisted` whether its sources were listed once more after the in-flight window.
    """

    claimed: int = 0
    life: str = ""
    fenced_since: float | None = None
    doubted: bool = False
    relisted: bool = False


class WaitsFor(msgspec.Struct, frozen=True):
    """`seconds`: until the in-flight window has passed. `sources`: keys of those that were not listed yet."""

    reason: WaitReason
    seconds: float = 0.0
    sources: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """Write `claimed(...)`, then demand a list of every source, then set Progress.claimed."""


class Fence(msgspec.Struct, frozen=True):
    """Write `fenced(...)`."""


class Rebuild(msgspec.Struct, frozen=True):
    """Write `rebuilt(...)`."""


class Wait(msgspec.Struct, frozen=True):
    seconds: float


class Relist(msgspec.Struct, frozen=True):
    """Demand a list of every source once more."""


class Open(msgspec.Struct, frozen=True):
    """In one write: count these sources as they are now, and `fencing.reopen`, if it still answers."""

    sources: tuple[str, ...]


class Obey(msgspec.Struct, frozen=True):
    """Write `accounts.apply_grant(...)`."""


class Close(msgspec.Struct, frozen=True):
    """Write `fencing.close(...)`."""


class Rest(msgspec.Struct, frozen=True):
    """Nothing to do."""


Step = Claim | Fence | Rebuild | Wait | Relist | Open | Obey | Close | Rest


def next_step(
    account: Account,
    grant: Grant,
    progress: Progress,
    sources: Sequence[SourceFacts],
    *,
    term: int,
    window: float,
    now: float,
    withdrawn: bool = False,
    published: Report | None = None,
) -> tuple[Step, Progress]:
    """The step, and what is remembered if it succeeds. `window` in seconds, `now` monotonic. `withdrawn`: the quota
    limits nothing on this seed. `published`: the report that the copy shows."""
    if account.epoch != term or (progress.claimed, progress.life) != (term, account.incarnation):
        return Claim(), Progress(claimed=term, life=account.incarnation)
    if not account.fenced:
        progress = Progress(claimed=progress.claimed, life=progress.life)
    elif progress.fenced_since is None:
        progress = msgspec.structs.replace(progress, fenced_since=now)
    if fencing.needs_fence(account, grant):
        return Fence(), progress
    if _went_back(account, grant, published):
        return Rebuild(), progress
    if fencing.is_superseded(account, grant):
        return Fence(), progress
    if withdrawn:
        return (Close() if fencing.may_close(account, grant) else Rest()), progress
    if fencing.answers(account, grant):
        return _opening(account, grant, progress, sources, window=window, now=now)
    if accounts.apply_grant(account, grant).returned != account.returned:
        return Obey(), progress
    return Rest(), progress


def _opening(
    account: Account,
    grant: Grant,
    progress: Progress,
    sources: Sequence[SourceFacts],
    *,
    window: float,
    now: float,
) -> tuple[Step, Progress]:
    trust = trusted(account, grant)
    if trust is not Trust.ALL:
        progress = msgspec.structs.replace(progress, doubted=True)
        left = window_left(progress, window, now)
        if left > 0:
            return Wait(left), progress
        if not progress.relisted:
            return Relist(), msgspec.structs.replace(progress, relisted=True)
    if _unlisted(trust, sources):
        return Wait(WAIT_FOR_SOURCES), progress
    ready = tuple(source.key for source in sources if source.countable)
    return Open(ready), Progress(claimed=progress.claimed, life=progress.life)


def window_left(progress: Progress, window: float, now: float) -> float:
    """Seconds until what was admitted before the fence cannot be on its way any more."""
    return max(0.0, window if progress.fenced_since is None else progress.fenced_since + window - now)


def _unlisted(trust: Trust, sources: Sequence[SourceFacts]) -> tuple[str, ...]:
    """Without those that cannot be reached and whose last count can be relied on."""
    waiting = (source for source in sources if not source.countable)
    return tuple(source.key for source in waiting if trust is Trust.NOTHING or not source.unreachable)


def admits_nothing(account: Account | None, term: int, *, since: int, cold: bool) -> bool:
    """Also where the leader will fence it when it claims it: see `claimed`. No replica admits by it until then."""
    if account is None or account.fenced:
        return True
    return account.epoch != term and _in_doubt(account, since=since, cold=cold)


def waits_for(
    account: Account | None,
    grant: Grant,
    progress: Progress,
    sources: Sequence[SourceFacts],
    *,
    turn: bool = False,
    ledger: bool = False,
    window: float,
    now: float,
) -> WaitsFor:
    """Of an account that admits nothing. `turn`: others are opened first. `ledger`: it could not be read or written.
    `progress`: after the last step."""
    if ledger:
        return WaitsFor(WaitReason.LEDGER)
    if turn or account is None:
        return WaitsFor(WaitReason.TURN)
    if not fencing.answers(account, grant):
        return WaitsFor(WaitReason.MASTER_ANSWER)
    trust = trusted(account, grant)
    left = window_left(progress, window, now) if trust is not Trust.ALL else 0.0
    if left > 0:
        return WaitsFor(WaitReason.IN_FLIGHT_WINDOW, seconds=left)
    return WaitsFor(WaitReason.SOURCES, sources=_unlisted(trust, sources))


def why_recounted(account: Account) -> str:
    """For the log, of an account that waits for the window before it is counted."""
    if account.granted and fencing.is_closed(account):
        return "the quota is back on this seed: counting"
    if account.granted:
        return "the lease was not held all the time, so the ledger may have been restored meanwhile: recounting"
    return "ledger was lost: recounting"


class Trust(Enum):
    """What a fenced account's ledger can be relied on for.

    COUNTS: what the master saw of it is there. What was admitted after that, in the moments before it lost sight of the
    seed, may have gone with a backup that was restored since. NOTHING: no count that is kept, also of a source that
    cannot be asked, can be relied on.
    """

    ALL = "all"
    COUNTS = "counts"
    NOTHING = "nothing"


def trusted(account: Account, grant: Grant) -> Trust:
    knows = not account.in_doubt or grant.incarnation == account.master  # another life of its ledger forgot
    if knows and not any(resources.subtract(grant.granted, grant.returned).values()):
        # The seed holds nothing, so nothing can be in flight. An account that was closed (rule 3.11) has forgotten what
        # it had admitted before, which may be in flight. So has one that was made after such a one was deleted.
        once = account.granted or grant.granted
        return Trust.COUNTS if once and fencing.is_closed(account) else Trust.ALL
    if not account.granted:
        return Trust.NOTHING
    if not account.in_doubt:
        return Trust.ALL
    if not 0 < grant.seen <= account.fenced_at:
        return Trust.NOTHING
    return Trust.ALL if grant.unbroken else Trust.COUNTS


def claimed(account: Account, term: int, *, since: int, cold: bool, nonce: str) -> Account:
    """`cold`: the lease was not held continuously until our term, but `since` that one. The first leader of this run
    of terms may have ended before it had claimed all accounts: of those that it left, it is not known either whether
    they were restored. Raises StaleEpochError.
    """
    after = accounts.claim_epoch(account, term)
    return fencing.fence(after, nonce, in_doubt=True) if _in_doubt(account, since=since, cold=cold) else after


def _in_doubt(account: Account, *, since: int, cold: bool) -> bool:
    return cold or account.epoch < since


def fenced(account: Account, grant: Grant, nonce: str) -> Account:
    in_doubt = fencing.is_superseded(account, grant)
    if not in_doubt and not fencing.needs_fence(account, grant):
        return account
    return fencing.fence(account, nonce, in_doubt=in_doubt)


def rebuilt(account: Account, grant: Grant, published: Report | None, incarnation: str, nonce: str) -> Account:
    return fencing.rebuild(account, incarnation, nonce) if _went_back(account, grant, published) else account


def _went_back(account: Account, grant: Grant, published: Report | None) -> bool:
    """A report is published after the write that it is about, and the master takes no earlier one of the same life."""
    if published is not None and published.incarnation == account.incarnation and published.sequence > account.sequence:
        return True
    return fencing.went_back(account, grant)
