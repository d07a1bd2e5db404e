"""What is in a feature cache, in lines or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specforge_dstill.data.cache_contents import CacheContents, read_contents
from specforge_dstill.data.cache_folder import feature_names
from specforge_dstill.data.capture_state import cache_state
from specforge_dstill.data.manifest import CacheManifest
from specforge_dstill.data.progress import Progress
from specforge_dstill.table import bar, byte_text, text_table, wrapped

_SETTINGS = (
    *("target", "target_layer_ids", "strategy", "dtype", "width", "max_length", "chat_template"),
    *("template_kwargs", "last_turn_only", "conversations", "shard_size"),
)
_BAR = 24
_NAMED_FAULTS = 3


def inspect_cache(folder: Path, *, limit: int | None, as_json: bool) -> None:
    """Print what the cache's manifest says and what its files hold.

    Raises:
        UserError: the manifest is damaged.
    """
    names = feature_names(folder)
    manifest = CacheManifest.read(folder)
    state = cache_state(folder, names)
    chosen = [folder / name for name in names[:limit]]
    with Progress("inspect", total=len(chosen), unit="file") as progress:
        contents = read_contents(chosen, update=progress.advance)
    if as_json:
        found = _json(folder, state, manifest, len(names), contents)
        print(json.dumps(found, ensure_ascii=False, indent=1))
        return
    print(f"{folder}: feature cache, {state}")
    print("\n".join([*_manifest_lines(manifest), *(f"  {line}" for line in _lines(contents))]))
    if len(chosen) < len(names):
        print(f"  of {len(names):,} files; the counts are of the first {len(chosen):,}")
    print("  states are not looked at here; specforge-dstill verify reads everything")
    if contents.readable:
        print(f"\n{_length_table(contents)}")


def _manifest_lines(manifest: CacheManifest | None) -> list[str]:
    if manifest is None:
        return []
    made = {k: v for k, v in manifest.generation.items() if k != "versions"}
    left_out = [f"{count:,} left out: {why}" for why, count in manifest.dropped.items()]
    return [
        wrapped(f"{name} {getattr(manifest, name)}" for name in _SETTINGS),
        "  answers made with:" if made else "  how the answers were made is not known",
        *([wrapped((f"{name} {value}" for name, value in made.items()), indent=4)] if made else []),
        wrapped([f"{manifest.conversation_count:,} conversations", *left_out]),
    ]


def _lines(contents: CacheContents) -> list[str]:
    lines = [f"{contents.files:,} files, {byte_text(contents.bytes)}"]
    lines += [f"{count:,} of them: {layout}" for layout, count in contents.layouts.most_common()]
    if contents.readable:
        mean = contents.tokens / contents.readable
        lines.append(
            f"{contents.tokens:,} tokens, {contents.scored:,} of them scored, "
            f"{contents.anchors:,} valid anchors"
        )
        lines.append(
            f"{contents.shortest:,} to {contents.longest:,} tokens a sample, {mean:,.1f} on average"
        )
    if contents.faulty:
        lines.append(f"{len(contents.faulty):,} files that cannot be read:")
        lines += [f"  {fault}" for fault in contents.faulty[:_NAMED_FAULTS]]
    return lines


def _length_table(contents: CacheContents) -> str:
    most = max(contents.lengths.values())
    rows = [
        [f"{edge // 2 + 1:,} to {edge:,}", f"{count:,}", bar(count / most, width=_BAR)]
        for edge, count in sorted(contents.lengths.items())
    ]
    return text_table(["tokens", "samples", ""], rows)


def _json(
    folder: Path,
    state: str,
    manifest: CacheManifest | None,
    files: int,
    contents: CacheContents,
) -> dict[str, Any]:
    settings = None
    if manifest is not None:
        names = (*_SETTINGS, "generation", "conversation_count", "samples", "dropped", "versions")
        settings = {name: getattr(manifest, name) for name in names}
    return {
        "path": str(folder),
        "kind": "feature cache",
        "state": state,
        "files": files,
        "manifest": settings,
        "contents": contents.to_json(),
    }
