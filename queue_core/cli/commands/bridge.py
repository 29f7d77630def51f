"""`towline bridge`: move messages of another broker of Celery's into queues."""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Final, Literal, Unpack

import click

from queue_core.celery.bridge.consumer import BridgeConsumer
from queue_core.celery.bridge.lists import SCHEMES, BridgeLists
from queue_core.celery.bridge.message import Priorities
from queue_core.celery.bridge.mover import BATCH, MAX_KEPT, BridgeCounts, BridgeMover, BridgeNote, BridgePlan
from queue_core.celery.bridge.source import BridgeSource, MissingSourceQueueError
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import ProgressBar, print_info, print_json, progress
from queue_core.cli.target import TargetOptions, opened
from queue_core.clock import SystemClock
from queue_core.config.store_urls import masked, scheme_of
from queue_core.process.wording import counted, shown_seconds

_EXTRAS: Final = {"redis": "pip install 'towline[redis]'", "amqp": "pip install amqp"}
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@command(
    "bridge",
    when_cut="stderr",
    examples=(
        "towline bridge --from redis://127.0.0.1/0 --queue celery --once",
        "towline bridge --from amqp://guest:guest@rabbit// --queue celery --queue mail",
        "towline bridge --from redis://127.0.0.1/0 --queue celery --to-queue old --url http://towline:7878",
    ),
)
@click.option(
    "--from",
    "source",
    required=True,
    metavar="URL",
    envvar="TOWLINE_BRIDGE_FROM",
    help="Celery's broker_url  [or TOWLINE_BRIDGE_FROM, which no other user can read]",
)
@click.option("--queue", "names", multiple=True, required=True, metavar="NAME", help="Celery's queue; may be repeated.")
@click.option("--to-queue", metavar="NAME", default="", help="Move all into this queue  [default: of the same name]")
@click.option("--namespace", default="", help="The namespace at the end of the workers' new broker_url, if any.")
@click.option("--once", is_flag=True, help="End when the queues are empty, instead of going on.")
@click.option(
    "--priorities",
    type=click.Choice(["kept", "reversed"]),
    default="kept",
    show_default=True,
    help="reversed: 0 came first, as with Celery on Redis; here 9 does.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="One of the old broker_transport_options, such as global_keyprefix=shop.; may be repeated.",
)
@target_options
def bridge(
    source: str,
    names: tuple[str, ...],
    to_queue: str,
    namespace: str,
    once: bool,  # noqa: FBT001  click's flag
    priorities: Priorities,
    options: tuple[str, ...],
    as_json: bool,  # noqa: FBT001
    **where: Unpack[TargetOptions],
) -> int:
    """Move the messages of Celery's queues on another broker into queues here, where Celery's workers run them.

    Each message is added here, and only then acknowledged there: nothing is lost if the bridge is killed, and nothing
    arrives twice, as a task is named after its message. Priority, eta, expiry and tag are kept. Start it again
    after a kill: on Redis it first moves what it had taken (list QUEUE.towline-bridge). When one side
    is unavailable, it says so and retries. SIGTERM and Ctrl-C end it after the batch in hand.

    A message that can't be moved, as it is too large, stays where it is and is named. Messages that workers of the old
    broker have taken are theirs: stop those workers warmly, and they come back and are moved.

    It moves messages of Celery and kombu, in their format; for other messages, use a consumer of their own and
    `towline add`. Exit code 1 if a message was left.
    """
    stop, clock = Event(), SystemClock()
    queues = tuple(dict.fromkeys(names))
    opened_source = _source(source, queues, options=_options(options), stop=stop)
    plan = BridgePlan(to_queue, namespace, priorities)
    with opened(makes_queues=False, **where) as (target, place), progress("messages", quiet=as_json) as bar:
        _open(opened_source, source)
        mover = BridgeMover(
            opened_source,
            target,
            plan,
            target=place.shown,
            clock=clock,
            stop=stop,
            on_note=lambda note: _print_note(note, as_json=as_json, is_redis=scheme_of(source) in SCHEMES, plan=plan),
            progress=lambda done, waiting: _show(bar, done, waiting),
        )
        try:
            mover.prepare(queues)
            with _stopped_by_signals(stop):
                ended = mover.run(once=once)
        finally:
            held = _held(opened_source)
            opened_source.close()
    _print_end(
        mover.counts, ended, queues=queues, plan=plan, source=masked(source), target=place.shown, as_json=as_json
    )
    if held and not as_json:
        print_info(
            f"{counted(held, 'message')} of that database are held by workers of the old broker: they come back when"
            " those end warmly, or when their visibility timeout is over while one runs; then run this again"
        )
    return exits.NEGATIVE if mover.counts.kept else exits.OK


def _source(url: str, queues: Sequence[str], *, options: Mapping[str, object], stop: Event) -> BridgeSource:
    if not scheme_of(url) or ":" not in url:
        message = f"'{masked(url)}' is no URL of a broker"
        raise CommandError(message, code=exits.BAD_CONFIG, where="--from", fix="give Celery's broker_url")
    try:
        if scheme_of(url) in SCHEMES:
            return BridgeLists(url, queues, options=options, stop=stop)
        return BridgeConsumer(url, queues, prefetch=2 * BATCH, options=options, clock=SystemClock())
    except (ImportError, KeyError, ValueError, AttributeError) as error:
        reason = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        fix = _EXTRAS.get(scheme_of(url), "install kombu's extra for this broker, or correct the URL")
        message = f"kombu can't use this broker: {reason}"
        raise CommandError(message, code=exits.BAD_CONFIG, where=f"{masked(url)} (--from)", fix=fix) from error


def _options(pairs: Sequence[str]) -> dict[str, object]:
    options: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--option {pair}: write NAME=VALUE, such as global_keyprefix=shop.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _open(source: BridgeSource, url: str) -> None:
    """Connect for the first time: an error here is one of the command line's."""
    place = f"{masked(url)} (--from)"
    try:
        source.open()
    except MissingSourceQueueError as error:
        fix = "check the name; a queue that is declared by its first message does not exist before it"
        raise CommandError(f"there is no queue '{error}'", code=exits.NO_INPUT, where=place, fix=fix) from error
    except source.errors as error:
        reason = str(error) or type(error).__name__
        raise CommandError(reason, code=exits.UNAVAILABLE, where=place, fix="start it, or correct the URL") from error


@contextmanager
def _stopped_by_signals(stop: Event) -> Iterator[None]:
    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, handle) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(bar: ProgressBar, done: int, waiting: int) -> None:
    bar("moving", done, done + waiting)


def _print_note(note: BridgeNote, *, as_json: bool, is_redis: bool, plan: BridgePlan) -> None:
    if note.kind == "priorities" and not (is_redis and plan.priorities == "kept"):
        return
    if as_json:
        print_json({"event": note.kind, "what": note.what, "reason": note.reason, "pause_seconds": note.pause_seconds})
        return
    print_info(
        {
            "away": f"{note.what} does not answer: {note.reason}; trying again in {shown_seconds(note.pause_seconds)}",
            "back": f"{note.what} answers again",
            "kept": f"{note.what} stays where it is: {note.reason}",
            "priorities": f"{note.what}: messages have priorities; with Celery on Redis 0 comes first, here 9:"
            " --priorities reversed keeps their order",
        }[note.kind]
    )


def _held(source: BridgeSource) -> int:
    """Return how many messages workers of a Redis hold; 0 where that can't be asked."""
    if not isinstance(source, BridgeLists):
        return 0
    try:
        return source.held_by_workers()
    except (*source.errors, AttributeError):
        return 0


def _print_end(
    counts: BridgeCounts,
    ended: Literal["empty", "stopped", "flawed"],
    *,
    queues: Sequence[str],
    plan: BridgePlan,
    source: str,
    target: str,
    as_json: bool,
) -> None:
    if as_json:
        kept = [{"message": note.what, "reason": note.reason} for note in counts.kept]
        moved = {"moved": counts.moved, "known": counts.known, "unnamed": counts.unnamed, "kept": kept}
        places = {"from": source, "to": target, "queues": {queue: plan.stored(queue) for queue in queues}}
        print_json({"event": "ended", "ended": ended, **moved, **places})
        return
    print_info(f"{counted(counts.moved, 'message')} moved from {source} to {target}{_REASONS[ended]}")
    if counts.known:
        print_info(f"{counts.known:,} had been moved before, and were only acknowledged")
    if counts.unnamed:
        print_info(f"{counts.unnamed:,} had no id: had the bridge been killed, they might have been moved twice")
    if counts.kept:
        print_info(f"{counted(len(counts.kept), 'message')} can't be moved, as said above: left at {source}")


_REASONS: Final = {
    "empty": "; nothing else waits there",
    "stopped": "; stopped",
    "flawed": f"; ended, as {MAX_KEPT:,} messages can't be moved",
}
