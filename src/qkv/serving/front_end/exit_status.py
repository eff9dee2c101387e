"""Exit statuses of the front end's process, besides 0."""

STOPPED_AT_ONCE = 130
"""After a second signal."""
DRAINED_TOO_LONG = 131
"""Requests still ran when the time for draining was over."""

EXPECTED = (0, STOPPED_AT_ONCE, DRAINED_TOO_LONG)
"""Statuses of a front end that has ended as it was told to."""
