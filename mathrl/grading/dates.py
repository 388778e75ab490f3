"""Times of day and dates: 3:30 PM as 15:30, October 12, 1492 as 12 Oct 1492."""

from __future__ import annotations

import re

from mathrl.grading.words import SPACING, unwrap

_CLOCK = re.compile(r"(?:at )?(\d{1,2})(?: ?[:.] ?(\d\d))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)


_IN_WORDS = {"noon": "12:00 pm", "midnight": "12:00 am"}


def _in_digits(text: str) -> str:
    said = SPACING.sub(" ", unwrap(text)).strip(" .").lower()
    return _IN_WORDS.get(said.removeprefix("12 ").removeprefix("at "), said)


def same_time(truth: str, answer: str) -> bool | None:
    """Whether two times of day agree; None where neither has a.m. or p.m. A time without it may be either.

    >>> same_time("3:30 PM", "15:30"), same_time("3:30 PM", "3:30"), same_time("3 pm", "3 am"), same_time("3:30", "7:2")
    (True, True, False, None)
    """
    times = [_CLOCK.fullmatch(_in_digits(text)) for text in (truth, answer)]
    if None in times or not any(time[3] for time in times if time):
        return None
    minutes, exact = [], True
    for time in times:
        assert time is not None
        hour, half = int(time[1]), (time[3] or "").lower()
        if hour > 23 or (half and not 0 < hour < 13) or (not half and not time[2]):
            return None
        exact = exact and (bool(half) or hour > 12 or hour == 0)
        minutes.append((hour % 12 + 12 * (half == "p") if half else hour) * 60 + int(time[2] or 0))
    return (minutes[0] - minutes[1]) % (1440 if exact else 720) == 0


_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" if month != "may" else month for month in _MONTHS)
_DATE = re.compile(
    rf"(?:on )?(?:({_MONTH})\.? (?:the )?(\d{{1,2}})(?:st|nd|rd|th)?"
    rf"|(?:the )?(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?({_MONTH})\.?)(?:,? (\d{{4}}))?",
    re.IGNORECASE,
)


def same_date(truth: str, answer: str) -> bool | None:
    """Whether two dates agree; None where one of the texts is none, or only one has a year.

    >>> same_date("October 12, 1492", "12 Oct 1492"), same_date("March 5", "May 3"), same_date("March 5", "5")
    (True, False, None)
    """
    dates = [_DATE.fullmatch(SPACING.sub(" ", unwrap(text)).strip(" .")) for text in (truth, answer)]
    said = [((date[1] or date[4]).lower()[:3], int(date[2] or date[3]), date[5]) for date in dates if date]
    if len(said) < 2 or (said[0][2] is None) != (said[1][2] is None):
        return None
    return said[0] == said[1]
