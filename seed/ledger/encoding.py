"""An account as a QuotaLedger object and back.

Reservations are one text, a line each: "UID GENERATION.CLAIMS SOURCE OBJECT AMOUNT" and, after each a semicolon,
EARLIER, REPLACES, REQUEST, BASE, LATE and TENANT (".CLAIMS" only above 1; parts at the end only as far as there is any:
a release reads no more than the parts that it knows). There may be thousands, each write carries them all, and API
servers walk every field of an object many times: with a map of 1000 entries a write takes nearly twice as long. Names
come from tenants: whatever would break the line is percent-encoded.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote

import msgspec

from common.api.convert import ask_from_wire, ask_to_wire, wire_quantities
from common.api.labels import ACCOUNTS, API_VERSION, BACKUP_LABEL, MANAGED_BY_LABEL
from common.api.ledger_types import QuotaRef
from common.api.types import Quantities, Wire, WireAsk
from common.quota import account as accounts
from common.quota import resources
from common.quota.account import Account, AccountKey, Reservation, ReservationKey
from common.quota.ledger_words import word
from common.quota.resources import ResourceList


class MalformedLedgerError(ValueError):
    """The ledger object does not hold an account: it was edited by hand, or written by a newer version."""


class TooLargeError(Exception):
    """The account would not fit into one object. Nothing was written."""


class WireAccount(Wire):
    incarnation: str
    sequence: int = 0
    master: str = ""
    epoch: int = 0
    state: str = ""
    nonce: str = ""
    fenced_at: int = 0
    in_doubt: bool = False
    granted: Quantities = {}
    returned: Quantities = {}
    used: dict[str, Quantities] = {}
    reserved: Quantities = {}
    reservations: str = ""
    ask: WireAsk = msgspec.field(default_factory=WireAsk)
    held_back: list[str] = []
    scarce: bool = False
    owners: dict[str, str] = {}


class LedgerSummary(Wire):
    held: str
    used: str
    reserved: str
    state: str
    epoch: int


class LedgerMeta(Wire):
    name: str
    namespace: str
    labels: dict[str, str]
    managed_fields: list[dict[str, str]]
    resource_version: str = ""


class Ledger(msgspec.Struct, kw_only=True, rename="camel"):
    api_version: str = API_VERSION
    kind: str = "QuotaLedger"
    metadata: LedgerMeta
    quota: QuotaRef
    summary: LedgerSummary
    account: WireAccount


class LedgerHead(msgspec.Struct, kw_only=True, rename="camel"):
    """Enough of an account to see whether it is news."""

    incarnation: str = ""
    sequence: int = 0


MAX_BYTES = 1_400_000  # of one object; etcd takes 1.5 MiB
MAX_SOURCES = 10_000  # API servers are slow with objects of more fields
SUMMED = 16  # resources in the columns of kubectl get

_RESET: list[dict[str, str]] = [{}]  # nobody applies a ledger, and who owns its fields would cost a tenth of each write


@lru_cache(maxsize=4096)
def _amounts_text(amounts: tuple[tuple[str, int], ...]) -> str:
    """Machines come in few sizes."""
    return resources.text({word(name): amount for name, amount in amounts})


@lru_cache(maxsize=4096)
def _parse_amounts(text: str) -> ResourceList:
    listed = dict(part.split("=", 1) for part in text.split(",") if part)
    return MappingProxyType({unquote(name): amount for name, amount in resources.parse(listed).items()})


def reservation_text(reservation: Reservation) -> str:
    number = (
        f"{reservation.generation}" if reservation.claims == 1 else f"{reservation.generation}.{reservation.claims}"
    )
    amount = _amounts_text(tuple(reservation.amount.items()))
    if reservation.base or reservation.late or reservation.tenant:
        earlier, base = (_amounts_text(tuple(each.items())) for each in (reservation.earlier, reservation.base))
        amount += f";{earlier};{word(reservation.replaces)};{word(reservation.request)};{base}"
        if reservation.late or reservation.tenant:
            amount += f";{'1' if reservation.late else ''}"
        amount += f";{word(reservation.tenant)}" if reservation.tenant else ""
    elif reservation.earlier or reservation.replaces:
        amount += f";{_amounts_text(tuple(reservation.earlier.items()))};{word(reservation.replaces)}"
        amount = f"{amount};{word(reservation.request)}".rstrip(";")
    elif reservation.request:
        amount += f";;;{word(reservation.request)}"
    return f"{number} {word(reservation.source)} {word(reservation.object)} {amount}"


def parse_reservation(text: str) -> Reservation:
    try:
        number, source, name, amounts = text.split(" ")
        generation, _, claims = number.partition(".")
        amount, earlier, replaces, request, base, late, tenant, *_ = *amounts.split(";"), *[""] * 6
        return Reservation(
            source=unquote(source),
            object=unquote(name),
            amount=_parse_amounts(amount),
            generation=int(generation),
            earlier=_parse_amounts(earlier),
            claims=int(claims or 1),
            replaces=unquote(replaces),
            request=unquote(request),
            base=_parse_amounts(base),
            late=bool(late),
            tenant=unquote(tenant),
        )
    except ValueError as error:
        raise MalformedLedgerError(f"reservation {text[:80]!r}: {error}") from None


class Encoder:
    """Renders one account again and again; a reservation is rendered once."""

    def __init__(self, key: AccountKey, namespace: str) -> None:
        self._quota = QuotaRef(name=key.name, uid=key.uid)
        self._namespace = namespace
        self._rendered: dict[ReservationKey, tuple[Reservation, str]] = {}
        self._json = msgspec.json.Encoder()

    def encode(self, account: Account, version: str | None) -> bytes:
        """Raises TooLargeError."""
        if len(account.used) > MAX_SOURCES:
            raise TooLargeError(f"an account of {len(account.used)} sources, at most {MAX_SOURCES} can be stored")
        before = self._rendered
        self._rendered = {
            key: rendered
            if (rendered := before.get(key)) is not None and rendered[0] is reservation
            else (reservation, f"{word(key[1])} {reservation_text(reservation)}")
            for key, reservation in account.reservations.items()
        }
        encoded = self._json.encode(self._object(account, version))
        if len(encoded) > MAX_BYTES:
            raise TooLargeError(f"an account of {len(encoded)} bytes, at most {MAX_BYTES} can be stored")
        return encoded

    def _object(self, account: Account, version: str | None) -> Ledger:
        state = "Fenced" if account.fenced else "Open"
        names = list(account.granted)[:SUMMED]
        return Ledger(
            metadata=LedgerMeta(
                name=self._quota.uid,
                namespace=self._namespace,
                labels={MANAGED_BY_LABEL: ACCOUNTS, BACKUP_LABEL: "true"},
                managed_fields=_RESET,
                resource_version=version or "",
            ),
            quota=self._quota,
            summary=LedgerSummary(
                held=resources.text(resources.only(accounts.held(account), names)),
                used=resources.text(resources.only(resources.total(account.used.values()), names)),
                reserved=resources.text(resources.only(account.reserved, names)),
                state=state,
                epoch=account.epoch,
            ),
            account=WireAccount(
                incarnation=account.incarnation,
                sequence=account.sequence,
                master=account.master,
                epoch=account.epoch,
                state=state,
                nonce=account.nonce,
                fenced_at=account.fenced_at,
                in_doubt=account.in_doubt,
                granted=wire_quantities(account.granted),
                returned=wire_quantities(account.returned),
                used={source: wire_quantities(used) for source, used in account.used.items()},
                reserved=wire_quantities(account.reserved),
                reservations="\n".join([text for _, text in self._rendered.values()]),
                ask=ask_to_wire(account.ask),
                held_back=list(account.held_back),
                scarce=account.scarce,
                owners={**account.owners},
            ),
        )


_accounts = msgspec.json.Decoder(WireAccount | None)


def decode(raw: bytes | memoryview) -> Account:
    """The account in a ledger object's `account` field. Raises MalformedLedgerError."""
    try:
        wire = _accounts.decode(raw)
        if wire is None:
            raise MalformedLedgerError("there is no account in it")
        return Account(
            incarnation=wire.incarnation,
            sequence=wire.sequence,
            master=wire.master,
            epoch=wire.epoch,
            nonce=wire.nonce,
            fenced_at=wire.fenced_at,
            in_doubt=wire.in_doubt,
            granted=resources.parse(wire.granted),
            returned=resources.parse(wire.returned),
            used={source: resources.parse(used) for source, used in wire.used.items()},
            reserved=resources.parse(wire.reserved),
            reservations=_reservations(wire.reservations),
            ask=ask_from_wire(wire.ask),
            held_back=tuple(wire.held_back),
            scarce=wire.scarce,
            owners=wire.owners,
        )
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedLedgerError(str(error)) from None


def _reservations(text: str) -> dict[ReservationKey, Reservation]:
    lines = (line.partition(" ") for line in text.split("\n") if line)
    parsed = ((unquote(uid), parse_reservation(rest)) for uid, _, rest in lines)
    return {(reservation.source, uid): reservation for uid, reservation in parsed}
