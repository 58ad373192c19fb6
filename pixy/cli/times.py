"""Points in time as arguments of commands: a date and time, or how long ago."""

import re
from datetime import UTC, datetime, timedelta

_ISO_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-01-31T12:00:00Z`, without a zone in UTC, or of a duration
    ago: `1h30m`, or `PT1H30M` of ISO 8601.

    Raises:
        ValueError: neither; the text says what is expected.
    """
    from pixy.config import parse_duration

    iso = _ISO_DURATION.fullmatch(text)
    if iso is not None and any(iso.groupdict().values()):
        ago = timedelta(**{unit: float(number) for unit, number in iso.groupdict().items() if number})
        return now_ms - round(ago.total_seconds() * 1000)
    try:
        return now_ms - round(parse_duration(text) * 1000)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a time like 2026-01-31T12:00:00Z nor a duration ago like 1h30m"
        ) from None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)
