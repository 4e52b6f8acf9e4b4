"""Windows: capacity that is promised in advance, at times that may repeat. Their times, and what a window may say."""

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.requests import Ask, Occurrence, Waiting
from distributed_grid.model.times import span
from distributed_grid.model.validators import is_plain_word

MOST_WINDOWS: Final = 100
"""In one cluster: every plan takes all of them into account."""
LONGEST_WINDOW_S: Final = 7 * 24 * 3600.0
_LONGEST_NAME: Final = 64
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_FULL_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EVERY: Final = ("daily", "every day", "everyday")
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}")
_TIME: Final = re.compile(r"(\d{1,2}):(\d\d)")
_A_YEAR: Final = timedelta(days=370)
_IDS: Final = uuid.UUID("0d6d6c8e-3a4e-5c0b-9b0a-6c9a1f0f5b11")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a window begins: at one time of day, on days of the week or on one date."""

    at: time
    days: frozenset[int]
    """0 is Monday; empty: only on the date `on`."""
    on: date | None = None

    def is_on(self, day: date) -> bool:
        return day == self.on if self.on is not None else day.weekday() in self.days

    def __str__(self) -> str:
        """As a person writes it: "Mon-Fri 09:00", "daily 22:00", "2026-12-01 09:00"."""
        clock = f"{self.at:%H:%M}"
        if self.on is not None:
            return f"{self.on.isoformat()} {clock}"
        return f"{'daily' if len(self.days) == 7 else _days_in_words(self.days)} {clock}"


def _days_in_words(days: frozenset[int]) -> str:
    runs: list[list[int]] = []
    for day in sorted(days):
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    words = (
        ",".join(_DAYS[day] for day in run) if len(run) < 3 else f"{_DAYS[run[0]]}-{_DAYS[run[-1]]}" for run in runs
    )
    return ",".join(words)


@lru_cache(maxsize=1000)
def parse_schedule(text: str) -> Schedule:
    """The times that a text such as "Mon-Fri 09:00" names, or `InvalidRequest`."""
    words = text.strip()
    when, _, clock = words.rpartition(" ")
    found, at = when.strip().lower(), _time(clock)
    if at is not None and found in _EVERY:
        return Schedule(at, frozenset(range(7)))
    if at is not None and (day := _date(found)) is not None:
        return Schedule(at, frozenset(), day)
    if at is not None and found and (days := _days(found)):
        return Schedule(at, days)
    raise InvalidRequest(
        f"{text!r:.80} does not say when a window begins",
        try_next='Give days and a time ("Mon-Fri 09:00", "Sat,Sun 08:00", "daily 22:00"), or a date and a time '
        '("2026-12-01 09:00").',
    )


def _time(text: str) -> time | None:
    found = _TIME.fullmatch(text)
    if found is None or int(found[1]) > 23 or int(found[2]) > 59:
        return None
    return time(int(found[1]), int(found[2]))


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _days(text: str) -> frozenset[int] | None:
    days: set[int] = set()
    for part in text.split(","):
        first, to, last = (word.strip() for word in part.partition("-"))
        begin, end = _day(first), _day(last if to else first)
        if begin is None or end is None:
            return None
        days |= {(begin + step) % 7 for step in range((end - begin) % 7 + 1)}  # "Fri-Mon" passes the weekend
    return frozenset(days)


def _day(word: str) -> int | None:
    return next((number for number, name in enumerate(_FULL_DAYS) if len(word) >= 3 and name.startswith(word)), None)


def zone_named(name: str) -> ZoneInfo:
    """The time zone with this name, or `InvalidRequest`."""
    try:
        if not _ZONE.fullmatch(name):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise InvalidRequest(
            f"Unknown time zone: {name!r:.80}",
            try_next="Use a name of the IANA database, such as Europe/Berlin or UTC. If the controller's machine has "
            "no such database, install tzdata there.",
        ) from None


@lru_cache(maxsize=10_000)
def begin_on(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The instant of a time of day on a date, in UTC.

    A local time that does not exist begins at the first moment after it that does; one that occurs twice, at the first.
    """
    local = datetime.combine(day, at, zone)
    begin = local.astimezone(UTC)
    if begin.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None):
        return begin
    # The clock jumps over it, at some moment between the two readings of this time: by the offsets after and before.
    early, late = local.replace(fold=1).astimezone(UTC), begin
    after = late.astimezone(zone).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == after:
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class Window:
    """A promise of capacity at certain times. `ask.duration_s` is how long each of them lasts, in elapsed time."""

    name: str
    ask: Ask
    at: str
    """When it begins; see `parse_schedule`."""
    zone: str
    created_at: datetime
    begun_at: datetime | None = None
    """When the last occurrence began that grid requested: none is requested twice."""
    missed: int = 0
    """How many occurrences ended before they got their capacity."""

    @property
    def length(self) -> timedelta:
        return timedelta(seconds=self.ask.duration_s)

    def occurrences(self, since: datetime, until: datetime) -> Iterator[Occurrence]:
        """Its times that overlap this interval, in order. What began before the window was created is none of them."""
        schedule, zone = parse_schedule(self.at), zone_named(self.zone)
        first = max(since - self.length, self.created_at)
        day, last = first.astimezone(zone).date() - _A_DAY, until.astimezone(zone).date() + _A_DAY
        if schedule.on is not None:
            day, last = max(day, schedule.on), min(last, schedule.on)
        while day <= last:
            if schedule.is_on(day):
                begin = begin_on(day, schedule.at, zone)
                if self.created_at <= begin < until and since < begin + self.length:
                    yield Occurrence(self.name, begin, begin + self.length, self.created_at)
            day += _A_DAY

    def next_one(self, now: datetime) -> Occurrence | None:
        """The occurrence in progress, or else the next one; None: there is none any more."""
        schedule = parse_schedule(self.at)
        until = now + _A_YEAR
        if schedule.on is not None:
            until = datetime.combine(schedule.on, schedule.at, UTC) + 2 * _A_DAY
        return next(self.occurrences(now, until), None)

    def next_begin(self, now: datetime) -> datetime | None:
        """When it begins next, after now."""
        found = self.next_one(now)
        if found is not None and found.begin <= now:
            found = self.next_one(found.end)
        return None if found is None else found.begin

    def request(self, occurrence: Occurrence, now: datetime) -> Waiting:
        """The request for one occurrence. Its id is the same whenever it is made."""
        begin = max(occurrence.begin, now)
        ask = replace(self.ask, duration_s=max(1.0, (occurrence.end - begin).total_seconds()))
        return Waiting(
            self.id_of(occurrence.begin),
            ask,
            occurrence.begin,
            occurrence.end,
            is_durable=True,
            occurrence=occurrence,
        )

    def id_of(self, begin: datetime) -> str:
        """The id of the request for the occurrence that begins then, and of the lease that it becomes."""
        return str(uuid.uuid5(_IDS, f"{self.name} {self.created_at.isoformat()} {begin.astimezone(UTC).isoformat()}"))

    def describe(self) -> str:
        return f"{self.name}: {self.ask.describe()}, {self.at} ({self.zone}), for {span(self.ask.duration_s)}"


_A_DAY: Final = timedelta(days=1)


def check_window(window: Window) -> Window:
    """The window with its times as a person would write them; raises `InvalidRequest` if it cannot be kept as it is."""
    check_window_name(window.name)
    window = replace(window, at=str(parse_schedule(window.at)))
    zone_named(window.zone)
    if window.ask.duration_s > LONGEST_WINDOW_S:
        raise InvalidRequest(f"A window lasts at most 7 days, not {span(window.ask.duration_s)}")
    now = window.created_at
    first = window.next_one(now)
    if first is None:
        raise InvalidRequest(
            f"{window.at} ({window.zone}) is over: the window would never begin",
            try_next="Give a moment that is still to come.",
        )
    before = first
    for each in window.occurrences(first.end, now + _A_YEAR):
        if each.begin < before.end and each.begin != before.begin:
            raise InvalidRequest(
                f"The window would overlap itself: it begins at {before.begin:%Y-%m-%d %H:%M}Z and again at "
                f"{each.begin:%Y-%m-%d %H:%M}Z, and lasts {span(window.ask.duration_s)}",
                try_next="Make it shorter with --for, or let it begin on fewer days.",
            )
        before = each
    return window


def check_window_name(name: str) -> str:
    if not is_plain_word(name) or len(name) > _LONGEST_NAME or name.startswith("-"):
        raise InvalidRequest(
            f"{name!r:.80} cannot be the name of a window",
            try_next=f"Use at most {_LONGEST_NAME} letters, digits and . _ -, without spaces or '/'.",
        )
    return name
