"""A refusal: its HTTP code, and what people and programs are told (docs/reference/protocol.md section 6). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.quota.resources import ResourceList

RETRY_SECONDS = 1
ALREADY_EXISTS = "AlreadyExists"
_REASONS = {403: "Forbidden", 409: "Conflict", 422: "Invalid", 503: "ServiceUnavailable"}


class Cause(msgspec.Struct, frozen=True):
    """For programs: status.details.causes."""

    reason: str
    message: str
    field: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why not. `code` 403 is final until something is deleted, 503 is worth a retry, 422 never succeeds.

    `quota` is the one that refuses, if one does; `used` and `being_created` are the numbers that it refuses by, `note`
    is what else the message says of them. `see`: where the quota is shown. `surge`: why surge does not help.
    """

    code: int
    text: str
    causes: Sequence[Cause]
    quota: str = ""
    used: ResourceList = {}
    being_created: ResourceList = {}
    note: str = ""
    see: str = ""
    surge: str = ""

    @property
    def reason(self) -> str:
        """The reason of the Status that is answered, as API servers name it."""
        return ALREADY_EXISTS if self.cause == ALREADY_EXISTS else _REASONS[self.code]

    @property
    def cause(self) -> str:
        """The reason in our own words: QuotaExceeded, QuotaUnavailable, MachineNotSized, ..."""
        return self.causes[0].reason

    @property
    def retry_seconds(self) -> int:
        return RETRY_SECONDS if self.code == 503 else 0

    def message(self, decision: str) -> str:
        """`decision`: its id; empty where nothing was decided."""
        parts = self.text, self.see and f"see: {self.see}", decision and f"decision {decision}", self.surge
        return "; ".join(part for part in parts if part)
