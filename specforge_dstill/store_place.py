"""Whether a run's trajectories can go where it says: told before anything is loaded.

That is minutes before a collection, and hours where its teacher is trained first.
"""

from __future__ import annotations

from specforge_dstill.runfile import RunFile


def check_place(run: RunFile, *, unused: bool = False) -> None:
    """UserError for a place that this run's collection cannot go to.

    Args:
        unused: refuse a store that is there, too, begun or complete.
    """
    from specforge_dstill.modes.assembly import list_samples
    from specforge_dstill.trajectory_store import check_uri, shard_count

    def shards() -> int:
        samples = len(list_samples(str(run.config.data.hidden_states_path)))
        return shard_count(samples, run.options.collect.shard_size)

    check_uri(run.options.trajectories, shards=shards, unused=unused)
