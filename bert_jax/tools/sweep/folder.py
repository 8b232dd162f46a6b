"""The folder of a sweep: its runs, their results, the best of them.

The run folders are what counts. The study beside them (`study.py`) says which points there are, and
is made anew from them where it is lost.
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config import ConfigDict
from bert_jax.run.layout import (
    BEST,
    CHECKPOINTS,
    GOODPUT,
    RECORDS,
    SWEEP_PRUNED,
    SWEEP_RESULT,
    is_described,
)
from bert_jax.run.ranking import Rank, loss_of, rank
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import read_fields
from bert_jax.runtime.folder_lock import Claim, claims_in
from bert_jax.runtime.schema import NUMBER, TEXT, ListOf
from bert_jax.tools.sweep.members import Member, Settings
from bert_jax.tools.sweep.search import Search
from bert_jax.watch.goodput import read_seconds
from bert_jax.watch.metrics_log import read_records

_SWEEP = {'config': TEXT, 'settings': ListOf(TEXT)}
_FAILED = {'time': NUMBER}
_PRUNED = {'metric': TEXT, 'why': TEXT}


@dataclasses.dataclass(eq=False)
class Sweep:
    """A sweep and its folder, in which several processes may work.

    Attributes:
      path: of the folder.
      config: file, as on the command line, or a config.
      overrides: '--config.FIELD=VALUE' for all members.
      grid: all runs of a grid, in their order; empty with a `search`.
      keep: number of best runs whose checkpoints are kept.
      search: what points are drawn from; None: the grid has them all.
      prune: which of PRUNERS ends runs early; '': none.
      storage: URL of the database that has the study; '': a journal in the folder.
    """

    path: files.Path
    config: str | ConfigDict
    overrides: Sequence[str]
    grid: Sequence[Member]
    keep: int = 1
    search: Search | None = None
    prune: str = ''
    storage: str = ''
    _begun: float = dataclasses.field(default_factory=time.time)
    # Claims on members that another process has; repeated attempts notice when that one is dead.
    _claims: dict[Member, Claim] = dataclasses.field(default_factory=dict)

    @property
    def members(self) -> Sequence[Member]:
        """The runs of the grid, or those of a search that have begun."""
        if self.search is None:
            return self.grid
        found = []
        for path in sorted(files.children(self.path / 'runs')):
            member = Member.of_folder(path.name)
            if member is not None and self._is_drawn(self.search, member):
                found.append(member)
        return found

    def _is_drawn(self, search: Search, member: Member) -> bool:
        """Whether a run is one of those that a search has."""
        point = member.without('seed')
        return search.holds(point) and member in search.runs_of(point)

    @property
    def num_runs(self) -> int:
        """The number of runs, also of those that are still to be drawn."""
        if self.search is None:
            return len(self.grid)
        return self.search.trials * max(self.search.restarts, 1)

    def runs_of(self, point: Settings) -> list[Member]:
        """The runs of a point, which differ in their seed."""
        if self.search is not None:
            return self.search.runs_of(point)
        return [member for member in self.grid if member.without('seed') == point]

    def run(self, member: Member) -> files.Path:
        """The run directory of a member."""
        return self.path / 'runs' / member.name

    def open(self, config: str, settings: Sequence[str]) -> None:
        """Makes the folder, or accepts one with the same runs, or one in which none has begun.

        Args:
          config, settings: what the results depend on.

        Raises:
          InputError: it holds a sweep of another config, whose results would pass for ours.
        """
        names = {path.name for path in files.children(self.path) if not files.is_incidental(path)}
        is_sweep = 'sweep.json' in names or names == {'runs'}
        files.open_folder(self.path, '--workdir', lambda _: is_sweep)
        path = self.path / 'sweep.json'
        ours = {'config': config, 'settings': sorted(settings)}
        theirs = None
        if path.exists():
            theirs = read_fields(path, _SWEEP, 'put it back, or delete it')
        if theirs != ours:
            if theirs and self._has_begun():
                raise InputError(
                    f'{self.path} holds a sweep of {_described(theirs)}, this is one of '
                    f'{_described(ours)}: give another --workdir, or the same settings')
            files.write_whole(path, json.dumps(ours) + '\n')
        (self.path / 'runs').mkdir(exist_ok=True)

    def token(self) -> str:
        """Distinguishes this sweep from others whose studies are in the same database.

        It is made when it is first asked for, while this process has the folder to itself.
        """
        path = self.path / 'study.json'
        if not path.exists():
            files.write_whole(path, json.dumps({'token': secrets.token_hex(4)}))
        remedy = 'delete it, and the study is made anew from the runs'
        return str(read_fields(path, {'token': TEXT}, remedy)['token'])

    def _has_begun(self) -> bool:
        """Whether any run has begun."""
        for run in files.children(self.path / 'runs'):
            if is_described(run) or (run / SWEEP_RESULT).exists():
                return True
        return False

    def result(self, member: Member) -> dict[str, Any] | None:
        """The result of a finished member, with `metric`; None if it is not finished.

        The metric itself is None where it is undefined.
        """
        path = self.run(member) / SWEEP_RESULT
        if not path.exists():
            return None
        remedy = 'delete it, and the run is run again'
        result: dict[str, Any] = read_fields(path, {'metric': TEXT}, remedy)
        metric = str(result.get('metric'))
        is_undefined = metric in result and result[metric] is None
        if not is_undefined and result.get(metric) not in NUMBER:
            raise InputError(f'{path} has {metric}={result.get(metric)!r:.100}: {remedy}')
        return result

    def failed(self, member: Member) -> bool:
        """Whether a member failed since this process began; if earlier, it is tried again."""
        path = self.run(member) / 'sweep_failed.json'
        if not path.exists():
            return False
        time_of_failure = read_fields(path, _FAILED, 'delete it').get('time') or 0.0
        return bool(time_of_failure >= self._begun)

    def pruned(self, member: Member) -> dict[str, Any] | None:
        """Why a member was ended early, with `metric` and `why`; None if it was not.

        Without --prune it is trained to its end.
        """
        path = self.run(member) / SWEEP_PRUNED
        if not self.prune or not path.exists() or self.result(member) is not None:
            return None
        return dict(read_fields(path, _PRUNED, 'delete it, and the run is run again'))

    def evaluations(self, member: Member, metric: str) -> dict[int, float | None]:
        """The recorded evaluations of a member by their step; None: the metric is undefined.

        Args:
          member: the member.
          metric: as in its records, 'eval/...'.
        """
        found = {}
        for record in read_records(self.run(member) / RECORDS):
            if any(name.startswith('eval/') for name in record):
                found[int(record['step'])] = record.get(metric)
        return found

    def unfinished(self) -> list[Member]:
        """Members that have not ended, even if another process runs them."""
        return [member for member in self.members if not self.has_ended(member)]

    def has_ended(self, member: Member) -> bool:
        """Whether a member is finished or pruned, or has failed since this process began."""
        if self.result(member) is not None or self.failed(member):
            return True
        return self.pruned(member) is not None

    def num_left(self) -> int:
        """The number of runs that have not ended."""
        return self.num_runs - sum(map(self.has_ended, self.members))

    def claim(self, member: Member) -> Claim | None:
        """A claim on a member that is neither finished nor pruned, to be released by the caller.

        None if it is not free.
        """
        self.run(member).mkdir(parents=True, exist_ok=True)
        claim = self._claims.setdefault(member, Claim(self.run(member)))
        if not claim.attempt():
            return None
        del self._claims[member]
        if self.result(member) is None and self.pruned(member) is None:
            return claim
        claim.release()  # another has just finished or pruned it
        return None

    def finish(self, member: Member, metric: str, result: dict[str, float]) -> None:
        """Writes the result of a member, and deletes checkpoints that are not to be kept."""
        record = {'metric': metric, 'host': platform.node(), metric: None, **result}
        if math.isinf(loss_of(record, metric)):
            record |= self._last_training_loss(member)
        files.write_whole(self.run(member) / SWEEP_RESULT, json.dumps(record) + '\n')
        self.keep_the_best()

    def fail(self, member: Member) -> None:
        """Records that a member failed."""
        record = {'time': time.time()}
        files.write_whole(self.run(member) / 'sweep_failed.json', json.dumps(record))

    def end_early(self, member: Member, metric: str, why: str) -> None:
        """Records that the point of a member was pruned, and deletes the member's checkpoints.

        The other runs of the point are not begun; a process that trains one ends it when it looks.
        """
        record = json.dumps({'metric': metric, 'why': why})
        others = [other for other in self.runs_of(member.without('seed')) if other != member]
        for run in map(self.run, [*others, member]):
            run.mkdir(parents=True, exist_ok=True)
            files.write_whole(run / SWEEP_PRUNED, record)
        if self.keep < self.num_runs:
            self._delete_checkpoints(member)

    def results(self) -> dict[Member, dict[str, Any]]:
        """The results of the finished members, best first; of equal metrics the lowest loss."""
        found = {}
        for member in self.members:
            result = self.result(member)
            if result is not None:
                found[member] = result
        best_first = sorted(found, key=lambda member: rank_of(found[member]), reverse=True)
        return {member: found[member] for member in best_first}

    def _last_training_loss(self, member: Member) -> dict[str, float]:
        """The last loss that a member has recorded, for one whose evaluations have none."""
        for record in reversed(read_records(self.run(member) / RECORDS)):
            if 'train/loss' in record:
                return {'train/loss': record['train/loss']}
        return {}

    def seconds(self, member: Member) -> float:
        """Seconds that a run took, over all its starts."""
        path = self.run(member) / GOODPUT
        return sum(read_seconds(path).values())

    def settle(self) -> None:
        """Does what a process that was killed after a run's last write has left to be done.

        Its claim on the run goes, the best run is linked and the others' checkpoints are deleted.
        """
        finished = self.results()
        pruned = [member for member in self.members if self.pruned(member) is not None]
        for member in [*finished, *pruned]:
            if claims_in(self.run(member)):
                self.claim(member)  # takes it and gives it back, if its holder is known to be dead
        if finished:
            self.keep_the_best()
        for member in pruned:
            is_busy = bool(claims_in(self.run(member)))
            if self.keep < self.num_runs and not is_busy:
                self._delete_checkpoints(member)

    def keep_the_best(self) -> None:
        """Links the best run as `winner`, and deletes checkpoints that are not to be kept."""
        ranking = list(self.results())
        if files.in_bucket(self.path):
            files.write_whole(self.path / 'winner', f'{self.run(ranking[0])}\n')
        else:
            link = files.temporary_name(self.path / 'winner')
            os.symlink(f'runs/{ranking[0].name}', link)
            os.replace(link, self.path / 'winner')  # replaces the link, not its target
        for member in ranking[self.keep :]:
            self._delete_checkpoints(member)

    def _delete_checkpoints(self, member: Member) -> None:
        for name in (CHECKPOINTS, BEST):
            with contextlib.suppress(OSError):  # another process may delete it at the same time
                (self.run(member) / name).rmtree(missing_ok=True)


def _described(sweep: Mapping[str, Any]) -> str:
    """The content of a sweep.json, for a message."""
    return f"--config={sweep.get('config')} {sweep.get('settings')}"


def score_of(result: Mapping[str, Any]) -> float | None:
    """A result by its own metric: pre-training that masks differently from BERT has another one.

    None if it is undefined.
    """
    score: float | None = result[result['metric']]
    return score


def rank_of(result: Mapping[str, Any]) -> Rank:
    """The rank of a result by its metric and its loss."""
    return rank(result, result['metric'])


def shown_score(result: Mapping[str, Any]) -> str:
    """The score of a result in four places, or that it is undefined."""
    score = score_of(result)
    return 'undefined' if score is None else f'{score:.4f}'
