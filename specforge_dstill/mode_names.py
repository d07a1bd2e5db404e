"""The names that `--mode` takes, known without loading torch or SpecForge."""

from __future__ import annotations

from specforge_dstill.errors import UserError
from specforge_dstill.suggest import nearest

DSTILL_MODES = ("dstill_teacher", "dstill_collect", "dstill_student")
SPECFORGE_MODES = ("dflash", "domino", "dspark", "eagle3", "peagle")
ALL_MODES = DSTILL_MODES + SPECFORGE_MODES


def check_mode(name: str, *, where: str = "--mode") -> None:
    """UserError unless `name` is a mode; it lists them and names the nearest."""
    if name in ALL_MODES:
        return
    close = nearest(name, ALL_MODES)
    hint = f"; did you mean {close}?" if close else ""
    raise UserError(f"{where}: unknown mode {name!r}{hint} (modes: {', '.join(ALL_MODES)})")
