"""Shows the facts of a decision, makes the decision again from these facts, and shows what would have fitted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from urllib.parse import quote, urlsplit

import msgspec

from cli.agents import Ask, Unreachable, at_urls, in_pods
from cli.connection import add_cluster, add_namespace
from cli.outcome import Failed
from cli.terminal import one_line
from common.quota.quantity import QuantityError
from common.server.agents import AgentResponse
from seed.admission import replay
from seed.admission.record import Record
from seed.admission.replay import Replay

PATH = "decisions"
MACHINE = "machine/"

HELP = "show why a Machine was admitted or refused"
EXAMPLES = """\
examples:
  seedquota explain 01JD3Y6K --context seed-1              # as the refusal ends
  seedquota explain machine/pool-a-x7 --context seed-1     # the last decision about it
  seedquota explain machine/kube-system/pool-a-x7 -o json

Each agent of a seed keeps its last decisions until it ends. You need the rights of charts/rbac/explain.yaml there.
Exit status: 0 done, 1 failed.
"""
_WHAT = re.compile(r"[0-9A-Za-z]{8}|machine/([^/]+/)?[^/]+")


class NotExplained(Failed):
    """There is no such decision, or nobody can be asked. The message says which."""


class _Found(msgspec.Struct):
    """What one agent knows."""

    agent: str
    record: Record


class _Items(msgspec.Struct):
    items: list[Record] = []


class _Explained(msgspec.Struct, rename="camel"):
    agent: str
    record: Record
    replay: Replay


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="ID|machine/NAME|machine/NAMESPACE/NAME",
        help="a decision, or the last decision about a Machine",
    )
    add_cluster(parser, "the seed")
    add_namespace(parser, "of the agents' pods")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="text or json [default text]")
    parser.add_argument(
        "--url",
        type=_url,
        action="append",
        default=[],
        help="health address of an agent, http://host:port; it can be repeated; not set: the agents' pods",
    )
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> str:
    """What is printed. Raises NotExplained."""
    if _WHAT.fullmatch(options.what) is None:
        raise NotExplained(
            f"no agent knows a decision of {options.what!r}: "
            "write the 8 letters and digits that a refusal ends with, machine/NAME or machine/NAMESPACE/NAME"
        )
    agents: AbstractAsyncContextManager[Ask]
    agents = at_urls(options.url) if options.url else in_pods(options)
    try:
        async with agents as ask:
            answers = await ask(_path(options.what))
    except Unreachable as error:
        raise NotExplained(str(error)) from None
    read = _all if options.what.startswith(MACHINE) else _one
    found = sorted(_found(answers, read), key=lambda one: one.record.time, reverse=True)
    if not found:
        raise NotExplained(_nothing(options.what, answers))
    try:
        explained = [_Explained(one.agent, one.record, replay.replay(one.record)) for one in found]
        if options.output == "json":
            return msgspec.json.format(msgspec.json.encode({"items": explained}), indent=2).decode()
        return "\n".join(map(one_line, _text(explained, answers)))
    except QuantityError as error:
        raise NotExplained(f"an agent's answer cannot be read: {error}") from None


def _url(raw: str) -> str:
    parts = urlsplit(raw)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{raw!r} is not a URL such as http://127.0.0.1:8081")
    return raw


def _path(what: str) -> str:
    if what.startswith(MACHINE):
        return f"{PATH}?machine={quote(what.removeprefix(MACHINE), safe='')}"
    return f"{PATH}/{what.upper()}"


def _one(content: bytes) -> list[Record]:
    return [msgspec.json.decode(content, type=Record)]


def _all(content: bytes) -> list[Record]:
    return msgspec.json.decode(content, type=_Items).items


def _found(answers: Sequence[AgentResponse], read: Callable[[bytes], list[Record]]) -> list[_Found]:
    found: list[_Found] = []
    for answer in answers:
        if answer.content is None:
            continue
        try:
            records = read(answer.content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise NotExplained(f"{answer.agent} answers what is no decision: {error}") from None
        found.extend(_Found(answer.agent, record) for record in records)
    return found


def _nothing(what: str, answers: Sequence[AgentResponse]) -> str:
    problems = [f"{answer.agent}: {answer.problem}" for answer in answers if answer.problem]
    if len(problems) == len(answers):
        return f"no agent can be asked: {'; '.join(problems)}"
    said = "; ".join([f"{len(answers)} asked, each keeps its last 8192 until it ends", *problems])
    return f"no agent knows a decision of {what}: {said}"


def _text(explained: Sequence[_Explained], answers: Sequence[AgentResponse]) -> list[str]:
    last = explained[0]
    lines = replay.text(last.record, last.replay)
    lines.append(f"kept by {last.agent}")
    if len(explained) > 1:
        others = ", ".join(f"{one.record.decision} {one.record.result} {one.record.time}" for one in explained[1:11])
        more = f" and {len(explained) - 11} more" if len(explained) > 11 else ""
        lines.append(f"before it: {others}{more}")
    lines.extend(f"not asked: {answer.agent}: {answer.problem}" for answer in answers if answer.problem)
    return lines
