"""No code from feature files while SpecForge's own loader reads them.

Its loader calls ``torch.load(weights_only=False)`` at each visit of a sample, so a check at the
start does not cover a file that is exchanged later. torch's documented switch
``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` overrides that argument.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType

from specforge_dstill.data.feature_files import read_tensors

_FORCED, _FORBIDDEN = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
# The function of specforge.runtime.data_plane.feature_store that opens a file, and its argument.
_LOADER, _PATH = "load_feature_file", "path"


@contextlib.contextmanager
def only_tensors() -> Iterator[None]:
    """Within it, in this process, torch.load reads tensors and plain values or refuses the file.

    For the reading of features: a checkpoint can hold more, and is to be loaded outside.

    Raises: ``UserError`` naming the feature file that could not be read.
    """
    before = {name: os.environ.pop(name, None) for name in (_FORCED, _FORBIDDEN)}
    os.environ[_FORCED] = "1"
    try:
        yield
    except Exception as error:
        path = _file_being_read(error.__traceback__)
        if path is not None:
            read_tensors(path)  # says what is wrong with it
        raise
    finally:
        del os.environ[_FORCED]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _file_being_read(traceback: TracebackType | None) -> str | None:
    """The feature file that SpecForge was opening when an error came up."""
    found = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name == _LOADER:
            found = traceback.tb_frame.f_locals.get(_PATH)
        traceback = traceback.tb_next
    return found
