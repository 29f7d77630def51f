"""Durations, times, counts and sizes as people read them, for every command of both packages. Pure.

JSON for programs has numbers instead; `queue_core.config.units` writes durations as a settings file takes them.
"""

from datetime import UTC, datetime
from typing import Final, Protocol

from queue_core.clock import ClockSteps

MINUTES_FROM_SECONDS: Final = 120.0
"""A duration from here on is shown in minutes."""
_MINUTE: Final = 60
_HOUR: Final = 3_600
_DAY: Final = 86_400
_SIZES: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown_seconds(seconds: float | None) -> str:
    """Format a measured duration: "4 ms", "0.17 s", "2.1 s", "34 s", "9 min", "3 h 5 min", "2 d 4 h"; "" for None."""
    if seconds is None:
        return ""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < MINUTES_FROM_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < _HOUR - _MINUTE / 2:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return _in_two_units(round(seconds / _MINUTE), 60, "h", "min")
    return _in_two_units(round(seconds / _HOUR), 24, "d", "h")


def shown_setting(seconds: float) -> str:
    """Format a duration that somebody set, exactly: "500 ms", "30 s", "1.5 s", "90 s", "6 h", "1 h 1 min"."""
    if seconds <= 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.10g} ms"
    if seconds % _MINUTE or seconds < _MINUTE:
        return f"{seconds:,.10g} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes} min" if minutes < 60 else _in_two_units(minutes, 60, "h", "min")


def shown_ago(seconds: float) -> str:
    """Format how long ago something was: "9 min ago"."""
    return f"{shown_seconds(max(0.0, seconds))} ago"


def shown_ahead(seconds: float) -> str:
    """Format how far ahead something is: "in 4 min"; "now" when its time has come."""
    return f"in {shown_seconds(seconds)}" if seconds > 0 else "now"


def shown_clock(at_seconds: float, *, now_seconds: float) -> str:
    """Format a time by the local clock, with its date unless that is today's; both are seconds since the epoch."""
    at, now = (datetime.fromtimestamp(seconds, UTC).astimezone() for seconds in (at_seconds, now_seconds))
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def shown_zone(at_seconds: float) -> str:
    """Return the name of this host's time zone then, such as CET."""
    return datetime.fromtimestamp(at_seconds, UTC).astimezone().tzname() or ""


def iso_instant(at_seconds: float) -> str:
    """Format seconds since the epoch for programs: ISO 8601 in UTC, to the millisecond, with its zone."""
    return datetime.fromtimestamp(at_seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: "1 worker", "1,277 tasks"; a plural without an s is given."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def clock_step_words(steps: ClockSteps) -> str:
    """Return the last step of a clock and the lag that is left: `stepped forward by 1 h: the store's time is ...`."""
    way = "forward" if steps.step_seconds > 0 else "back"
    lag = "behind" if steps.lag_seconds > 0 else "ahead of"
    return (
        f"stepped {way} by {shown_seconds(abs(steps.step_seconds))}: the store's time is "
        f"{shown_seconds(abs(steps.lag_seconds))} {lag} it, and follows it within {shown_seconds(steps.slewed_seconds)}"
    )


def shown_bytes(count: float) -> str:
    """Format a measured size: "512 B", "83 MiB", "1.4 GiB"."""
    for size, unit in _SIZES:
        if count >= size:
            amount = count / size
            return f"{amount:.1f} {unit}".replace(".0 ", " ") if amount < 9.95 else f"{amount:,.0f} {unit}"
    return f"{count:.0f} B"


def _in_two_units(count: int, size: int, unit: str, small_unit: str) -> str:
    large, small = divmod(count, size)
    return f"{large} {unit} {small} {small_unit}" if small else f"{large} {unit}"


def describe_held(*, leasable: int, held: int, by: str) -> str:
    """Return what limits hold back: "48 waiting, 40 of them limited by per_tag.max_in_flight: 2: 8 can be leased"."""
    limited = f"limited by {by}" if by else "limited"
    if not leasable:
        return f"{held:,} waiting, {'all ' if held > 1 else ''}{limited}: none can be leased"
    return f"{leasable + held:,} waiting, {held:,} of them {limited}: {leasable:,} can be leased"


class Repeated(Protocol):
    """A rate: a number of times a second."""

    @property
    def per_second(self) -> float: ...


def shown_limits(before: str, max_in_flight: int | None, rate: Repeated | None) -> list[str]:
    """Return limits as settings write them, with the key before theirs: "per_tag.max_in_flight: 2"."""
    found = [] if max_in_flight is None else [f"{before}max_in_flight: {max_in_flight:,}"]
    return found if rate is None else [*found, f"{before}rate: {format_rate(rate.per_second)}"]


def shown_rate(per_second: float) -> str:
    """Format a measured rate, without its unit: "1,250", "12.9", "0.03", "0"; never as a power of ten."""
    if per_second >= 99.95:
        return f"{per_second:,.0f}"
    return f"{per_second:.2f}" if 0 < per_second < 0.995 else f"{per_second:.3g}"


def format_rate(per_second: float) -> str:
    """Return the shortest way to write so many times a second: 10 is "10/s", 0.1 is "6/min"."""
    for unit, seconds in (("s", 1.0), ("min", 60.0), ("h", 3_600.0), ("d", 86_400.0)):
        number = per_second * seconds
        if abs(number - round(number)) < 1e-9 * number and number >= 1:
            return f"{round(number)}/{unit}"
    return f"{per_second:.10g}/s"
