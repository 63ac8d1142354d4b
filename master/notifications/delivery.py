"""Sends a message to a receiver that a tenant chose: to no address that is forbidden, and in bounded time and bytes.

The address is checked when a socket is about to be connected, whatever the host's name, its notation and earlier
answers of name servers. Redirects are not followed. Of the answer only the status is used: its body is not read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from time import time

import aiohttp

from common.kube.client.connection import USER_AGENT
from common.kube.client.networks import Networks
from common.kube.client.tenant_hosts import ForbiddenAddressError, TenantHosts
from common.kube.client.tls import of_the_system, verifying
from common.kube.client.transport import describe, new_session
from master.notifications.forms import Message
from master.notifications.receiver import InvalidReceiver, Receiver

log = logging.getLogger(__name__)

SECONDS = 10.0  # for all of one delivery
REDIRECTS = range(300, 400)


class Undelivered(Exception):
    """`reason` is for a condition. The message is for the tenant: it says neither where the receiver is nor why an
    address of the platform's network does not answer."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Hosts(TenantHosts):
    def __init__(self, notification: str, networks: Networks, *, plain: bool) -> None:
        super().__init__(notification, networks)
        self._networks = networks
        self._plain = plain

    def check(self, address: aiohttp.AddrInfoType) -> None:
        connected_to = str(address[4][0])
        allowed = self._networks.names if self._plain else self._networks.allows
        if not allowed(connected_to):
            raise ForbiddenAddressError(errno.EACCES, f"{connected_to} is forbidden")


async def deliver(
    receiver: Receiver, message: Message, *, identity: str, notification: str, networks: Networks
) -> None:
    """`notification`: namespace/name, whose lookups of names count together. Raises Undelivered, InvalidReceiver."""
    try:
        tls = None if receiver.plain else _tls(receiver.authorities)
    except (ssl.SSLError, ValueError):
        raise InvalidReceiver("key ca.crt: holds no usable PEM certificates") from None
    timestamp = int(time())
    headers = {
        "Content-Type": message.content_type,
        "User-Agent": USER_AGENT,
        "webhook-id": identity,
        "webhook-timestamp": str(timestamp),
    }
    if signature := receiver.signature(identity, timestamp, message.body):
        headers["webhook-signature"] = signature
    session = new_session(tls, 1, _Hosts(notification, networks, plain=receiver.plain))
    try:
        async with asyncio.timeout(SECONDS):
            response = await session.post(
                receiver.url,
                data=message.body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
            response.close()  # with its connection
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise _undelivered(error, notification, receiver) from None
    finally:
        await session.close()
    if response.status in REDIRECTS:
        raise Undelivered("Redirected", f"the receiver answers {response.status}; redirects are not followed")
    if not 200 <= response.status < 300:
        raise Undelivered("ReceiverRefused", f"the receiver answers {response.status}")


def _tls(authorities: str) -> ssl.SSLContext:
    return verifying(authorities) if authorities else of_the_system()


def _undelivered(error: Exception, notification: str, receiver: Receiver) -> Undelivered:
    """The log names the host, and nothing of the path, which is a secret with some receivers."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    forbidden = isinstance(cause, ForbiddenAddressError)
    why = f"no answer within {SECONDS:g} s" if isinstance(error, TimeoutError) else _described(cause)
    about = {"notification": notification, "host": receiver.url.host, "error": why}
    log.info("notification not delivered", extra=about)
    if not forbidden:
        text = "the receiver cannot be reached, or gives no valid answer; the log of seedquota-master says why"
        return Undelivered("ReceiverUnreachable", text)
    text = "the receiver has an address that is not public and not in --notification-networks"
    if receiver.plain:
        text = "without TLS, a receiver must have an address in --notification-networks; write https://"
    return Undelivered("AddressForbidden", text)


def _described(error: Exception) -> str:
    """An error of aiohttp about an answer has the URL in its text."""
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{type(error).__name__}: {error.message}"
    return type(error).__name__ if isinstance(error, aiohttp.InvalidURL) else describe(error)
