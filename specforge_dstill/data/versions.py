"""Versions of the libraries that made a file."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def library_versions(*names: str) -> dict[str, str]:
    """Installed versions by package name; a package that is not installed is left out."""
    found = {}
    for name in ("specforge-dstill", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
