"""SIGKILL at random moments: what is made in the end is what was made without."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.faults.child import Fault
from tests.faults.conftest import Work, Works
from tests.faults.jobs import finish, start

# Four kinds of job (capture and collection, one and two ranks): 32 kills in all.
KILLS = 8


class Killer:
    """Runs a command again and again, each time to a random moment or to its end.

    Of three moments two are changes that the last rank makes to the output (a temporary file, a
    rename: time alone would hardly ever hit those), and one is a point in time, of any rank's.
    """

    def __init__(self, work: Work, folder: Path, ranks: int, random: Random) -> None:
        self._work, self._folder, self._ranks, self._random = work, folder, ranks, random
        self.kills = 0

    def run(self) -> bool:
        """Whether the command came to its end."""
        if self.kills % 3 < 2:
            # A feature file is three changes, a shard with its checksum six.
            fault = Fault(self._folder / self._work.output, self._random.randint(1, 20))
            job = start(self._folder, self._work.words, ranks=self._ranks, fault=fault)
        else:
            job = start(self._folder, self._work.words, ranks=self._ranks)
            victim = self._random.randrange(self._ranks)
            job.ranks[victim].join(self._random.uniform(0, self._work.seconds))
            job.ranks[victim].kill()
        if job.end() == [0] * self._ranks:
            return True
        self.kills += 1
        self._work.kept(self._folder)
        return False


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["capture", "collect"])
def test_killed_runs_go_on_to_the_same_bytes(
    works: Works, tmp_path: Path, kind: str, ranks: int
) -> None:
    """Every record once, byte for byte as if nothing had happened, after any number of kills."""
    work: Work = getattr(works, kind)
    random = Random(f"{kind} on {ranks}")
    kills, runs = 0, 0
    while kills < KILLS:
        folder = works.folder(tmp_path / str(runs))
        killer = Killer(work, folder, ranks, random)
        while not killer.run() and kills + killer.kills < KILLS:
            pass
        # With another number of ranks, except that only a capture on one removes leftovers.
        finish(folder, work.words, ranks=2 if (kind, ranks) == ("collect", 1) else 1)
        work.check(folder)
        kills, runs = kills + killer.kills, runs + 1
    print(f"{kind} on {ranks}: {kills} kills over {runs} outputs")
