"""Makes `-m specforge.train` exist, wherever SpecForge lies: `specforge_dstill.pth` imports this.

A `specforge/train.py` of ours in site-packages would do for a SpecForge that is installed there,
and hide one that is an editable checkout, whose finder Python asks last.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec


class TrainFinder:
    """Finds `specforge.train`, and nothing else. One of SpecForge's own would be found before."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "specforge.train":
            return None
        # Imported here: every start of Python in this environment passes the lines above.
        from importlib.util import spec_from_file_location
        from pathlib import Path

        return spec_from_file_location(name, Path(__file__).parent / "_specforge" / "train.py")


if TrainFinder not in sys.meta_path:
    sys.meta_path.append(TrainFinder)
