"""The table of `qkv presets`: the models that can be built by name, with sizes; needs no torch."""

from __future__ import annotations

from qkv.models.presets import PRESETS
from qkv.tables import Table


def preset_table() -> Table:
    """All presets with their number of parameters, computed and published."""
    table = Table("preset", "parameters", "published", "source")
    for column in table.columns[:3]:
        column.no_wrap = True

    for column in table.columns[1:3]:
        column.justify = "right"

    for name, preset in PRESETS.items():
        published = ""
        if preset.published is not None:
            published = f"{preset.published:,.0f} M"

        table.add_row(name, f"{preset.parameters / 1e6:,.1f} M", published, preset.source)

    return table
