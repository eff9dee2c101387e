"""The table of `qkv presets`: every model that can be built by name, with its size. Needs no torch."""

from __future__ import annotations

from qkv.models.presets import PARAMETERS, PRESETS
from qkv.tables import Table


def preset_table() -> Table:
    table = Table("preset", "parameters", "published", "source")
    for column in table.columns[:3]:
        column.no_wrap = True

    for column in table.columns[1:3]:
        column.justify = "right"

    for name, preset in PRESETS.items():
        published = "" if preset.published is None else f"{preset.published:,.0f} M"
        table.add_row(name, f"{PARAMETERS[name] / 1e6:,.1f} M", published, preset.source)

    return table
