"""What time it is; with `SOURCE_DATE_EPOCH`, the one time that it says, so that bytes repeat."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from canal.errors import InvalidValueError


def now() -> datetime:
    """The time in UTC; that of `SOURCE_DATE_EPOCH`, in seconds, where it is set."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not fixed:
        return datetime.now(UTC)
    try:
        return datetime.fromtimestamp(int(fixed), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidValueError(
            f"SOURCE_DATE_EPOCH = {fixed!r} must be a number of seconds since 1970; unset it"
        ) from error
