"""One change of an account by the leader, and whether it must be tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable

from common.quota import fencing
from common.quota.account import Account, StaleEpochError
from seed.accounts.registry import AccountHandle
from seed.accounts.source_count import UncountableError
from seed.ledger.encoding import MalformedLedgerError
from seed.ledger.store import NoAccountError, StoreUnavailableError
from seed.model.quota import Quota

log = logging.getLogger(__name__)


class NotOpenError(Exception):
    """The account waits for the master since it was made, or was closed and is counted when it opens again."""


def check_opened(account: Account) -> None:
    """Raises NotOpenError. An account that was never open is counted when it opens: use in it looks like a life that
    was lost. So is one that was closed: use in it looks like one that forgot nothing."""
    if account.fenced and (not account.granted or fencing.is_closed(account)):
        raise NotOpenError


async def write(handle: AccountHandle, quota: Quota, change: Callable[[Account], tuple[Account, None]]) -> bool:
    """False if it must be tried again."""
    try:
        await handle.writer.change(change)
    except (StaleEpochError, NotOpenError, UncountableError):
        return False  # the accounts controller claims it first, or opens it; or lists are missing
    except NoAccountError:
        return True
    except (StoreUnavailableError, MalformedLedgerError) as error:
        log.info("count not written", extra={"quota": quota.name, "error": str(error)})
        return False
    return True
