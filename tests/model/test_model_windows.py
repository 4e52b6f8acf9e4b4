"""When windows begin: what their texts say, in every time zone, also where the clock jumps."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from builders import NOON, ask
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.windows import Window, begin_on, check_window, parse_schedule

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Pacific/Apia")
SECOND = timedelta(seconds=1)

dates = st.dates(date(2005, 1, 1), date(2035, 12, 31))
times = st.times(timezones=st.none()).map(lambda at: at.replace(second=0, microsecond=0, fold=0))


def window(at: str, *, hours: float = 3, zone: str = "Europe/Berlin", created: datetime = NOON) -> Window:
    return Window("w", ask(duration_s=hours * 3600), at, zone, created)


def begins(of: Window, since: datetime, days: int) -> list[str]:
    return [f"{each.begin:%a %d %H:%M}" for each in of.occurrences(since, since + timedelta(days=days))]


@pytest.mark.parametrize(
    ("text", "as_shown"),
    [
        ("Mon-Fri 09:00", "Mon-Fri 09:00"),
        ("daily 22:00", "daily 22:00"),
        ("every day 7:05", "daily 07:05"),
        ("sat,SUN 8:00", "Sat,Sun 08:00"),
        ("Monday,wed-Friday 9:05", "Mon,Wed-Fri 09:05"),
        ("Fri-Mon 7:00", "Mon,Fri-Sun 07:00"),
        ("2026-12-01 09:00", "2026-12-01 09:00"),
    ],
)
def test_a_schedule_is_shown_as_a_person_writes_it(text: str, as_shown: str) -> None:
    assert str(parse_schedule(text)) == as_shown
    assert parse_schedule(as_shown) == parse_schedule(text)


@pytest.mark.parametrize("text", ["", "09:00", "Foo 09:00", "Mon 25:00", "Mon 9", "Mon- 9:00", "2026-13-01 09:00"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_schedule(text)
    assert "Mon-Fri 09:00" in str(refused.value.try_next)


def test_days_are_those_of_the_windows_own_zone() -> None:
    early_on_monday = window("Mon 00:30", zone="Asia/Kathmandu")
    assert begins(early_on_monday, NOON, 8) == ["Sun 01 18:45", "Sun 08 18:45"]


def test_a_time_that_does_not_exist_begins_at_the_first_moment_after_it() -> None:
    assert begin_on(date(2026, 3, 29), time(2, 30), BERLIN) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert begin_on(date(2011, 12, 30), time(9, 0), ZoneInfo("Pacific/Apia")) == datetime(2011, 12, 30, 10, tzinfo=UTC)


def test_a_time_that_occurs_twice_begins_at_the_first() -> None:
    assert begin_on(date(2026, 10, 25), time(2, 30), BERLIN) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_the_length_is_elapsed_time() -> None:
    (each,) = window("2026-03-29 00:30", hours=3).occurrences(NOON, NOON + timedelta(days=400))
    assert each.end - each.begin == timedelta(hours=3)
    assert each.end.astimezone(BERLIN).time() == time(4, 30)


@given(dates, times, st.sampled_from(ZONES))
def test_a_window_begins_at_its_time_or_at_the_first_moment_after_it(day: date, at: time, zone: str) -> None:
    here = ZoneInfo(zone)
    begin = begin_on(day, at, here)
    local = begin.astimezone(here)
    wanted, earlier = datetime.combine(day, at), (begin - SECOND).astimezone(here).replace(tzinfo=None)
    assert begin.tzinfo is UTC
    assert local.replace(tzinfo=None) >= wanted
    assert earlier < wanted, "no earlier moment would do"
    assert local.fold == 0


@given(dates, times, st.sampled_from(ZONES), st.integers(1, 23 * 60), st.integers(0, 100 * 24 * 60))
def test_the_occurrences_of_an_interval_are_those_that_overlap_it(
    day: date, at: time, zone: str, minutes: int, later: int
) -> None:
    created = datetime.combine(day, time(12), UTC)
    daily = Window("w", ask(duration_s=minutes * 60.0), f"daily {at:%H:%M}", zone, created)
    since = created + timedelta(minutes=later)
    until = since + timedelta(days=3)
    all_of_them = list(daily.occurrences(created, created + timedelta(days=110)))
    found = list(daily.occurrences(since, until))
    assert found == [each for each in all_of_them if each.begin < until and since < each.end]
    assert all(each.begin >= created for each in all_of_them)
    assert [each.begin for each in all_of_them] == sorted(each.begin for each in all_of_them)
    following = daily.next_begin(since)
    assert following == min(each.begin for each in all_of_them if each.begin > since)


def test_the_request_for_an_occurrence_has_the_same_id_and_the_time_that_is_left() -> None:
    daily = window("daily 09:00")
    occurrence = daily.next_one(NOON)
    assert occurrence is not None
    on_time = daily.request(occurrence, occurrence.begin)
    late = daily.request(occurrence, occurrence.begin + timedelta(hours=1))
    assert on_time.id == late.id
    assert (on_time.ask.duration_s, late.ask.duration_s) == (3 * 3600.0, 2 * 3600.0)
    assert on_time.until == occurrence.end


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (window("daily 09:00", hours=24.5), "overlap itself"),
        (window("daily 02:00", hours=23.5), "overlap itself"),
        (window("Mon,Tue 09:00", hours=25), "overlap itself"),
        (window("Mon 09:00", hours=8 * 24), "at most 7 days"),
        (window("2020-01-01 09:00"), "is over"),
        (window("daily 09:00", zone="Mars/Olympus"), "time zone"),
        (window("daily 09:00", zone="../../etc/passwd"), "time zone"),
    ],
)
def test_a_window_that_cannot_be_kept_is_refused(wrong: Window, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_window(wrong)


def test_a_window_may_last_until_it_begins_again() -> None:
    assert check_window(window("daily 09:00", hours=23)).at == "daily 09:00"
    assert check_window(window("daily 09:00", hours=24, zone="UTC")).at == "daily 09:00"
