"""Columns whose names are reserved: every part of Headrace gives them one meaning."""

from typing import Final

TIMESTAMP: Final = "_timestamp"
"""The event time of a row, `timestamp[ns]` in UTC: every batch from a source carries it."""
RETRACT: Final = "_retract"
"""In an updating stream: true if the row takes back an earlier one that was equal."""
KEY_HASH: Final = "_key_hash"
"""The hash of a row's key, in state files."""
