"""How qkv's annotations are checked in tests: as a type checker reads them, an int is also a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
