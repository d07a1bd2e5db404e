"""Whether a cache is fit to score a drafter that learns from another one."""

from __future__ import annotations

import warnings
from pathlib import Path

from specforge_dstill.data.manifest import CacheManifest


def compare_held_out(training: Path, held_out: Path) -> None:
    """Warn where scores on ``held_out`` would say little of a drafter trained on ``training``.

    When the one is the other, when both were captured from the same conversations, and when
    they were captured with different chat templates. Caches without a manifest are not compared.
    """
    if training.resolve() == held_out.resolve():
        _warn(f"{held_out}: is the training cache; what a drafter has seen it drafts better")
        return
    ours, theirs = CacheManifest.read(training), CacheManifest.read(held_out)
    if ours is None or theirs is None:
        return
    if ours.conversations_hash == theirs.conversations_hash:
        _warn(
            f"{held_out}: was captured from the conversations of the training cache; what a "
            "drafter has seen it drafts better"
        )
    if _template(ours) != _template(theirs):
        _warn(
            f"{held_out}: was captured with another chat template or other template_kwargs than "
            "the training cache; acceptance can differ for that alone"
        )


def _template(manifest: CacheManifest) -> tuple[object, ...]:
    return manifest.chat_template_hash, manifest.template_kwargs


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
