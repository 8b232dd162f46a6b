"""The files of a labelled task: what is trained on, and what is scored.

`data.source` names the file to train on, or the folder or data set of a benchmark.
`data.eval_source` names the file to score. Where the user's own files leave it empty, the scored
examples are held out of `data.source`.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table, tfds
from bert_jax.runtime.errors import InputError, counted
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.runtime.hub import split_of
from bert_jax.tasks.handles import ScoredModel

# With fewer distinct texts than this, one text changes an accuracy by 5 % or more.
_FEW_TEXTS = 20
_TABLES = 'a .csv, .tsv, .jsonl or .parquet file'


def one_source(config: ConfigDict, meaning: str) -> str:
    """`data.source`, which has to be one path.

    Args:
      config: of the run.
      meaning: what `data.source` has to be, for messages.

    Raises:
      InputError: it is something else, or pre-training's default.
    """
    source = config.data.source
    if not isinstance(source, str) or not source or source.startswith('docs:'):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}')
    is_on_hub = source.startswith('hf:')
    is_pattern = not is_on_hub and re.search(r'[*?,\[]', source) is not None
    if is_pattern and not as_path(source).exists():
        raise InputError(
            f'config.data.source={source!r} does not exist: config.task={config.task!r} needs '
            f'{meaning}, one and by its name; put several files together, or name the one to score '
            'as config.data.eval_source')
    return str(as_path(source))


def split_file(
    config: ConfigDict, names: Sequence[str], on_hub: str, meaning: str, *, scored: bool = False,
    required: bool = True,
) -> str:
    """The file of a split of a benchmark, in the folder `data.source`; see `table.find_file`.

    `data.source` can also be the file to train on, with `data.eval_source` that to score; or a data
    set of the Hugging Face hub, or one of its splits to train on.

    Args:
      config: of the run.
      names: possible names of the file.
      on_hub: path of the split in the benchmark's data set on the hub.
      meaning: what `data.source` has to be, for messages.
      scored: whether this is the split to score, which `data.eval_source` overrides.
      required: whether the file has to exist; if not, '' is returned for a missing one.

    Raises:
      InputError: no such file.
    """
    if scored and config.data.eval_source:
        return str(as_path(config.data.eval_source))
    source = one_source(config, meaning)
    hub_split = split_of(source, on_hub)
    if hub_split:
        return hub_split
    is_folder = not source.startswith('hf:') and not as_path(source).is_file()
    if is_folder:
        return table.find_file(source, names, required=required)
    if scored:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return source


def tfds_records(config: ConfigDict, name: str, split: str) -> Iterator[dict[str, Any]]:
    """Records of a split of tensorflow-datasets."""
    return tfds.tfds_records(name, split, config.data.tfds_dir)


def own_files(
    config: ConfigDict, scored: ScoredModel | None, read: Callable[[str], Any],
    contents: Callable[[Any], Sequence[str]], meaning: str = _TABLES,
    wholes: Callable[[Any], Sequence[str]] | None = None,
) -> tuple[Any, Any]:
    """Examples to train on (None if a model is only scored) and to score, from your own files.

    Without `data.eval_source`, the examples to score are those that a hash holds out of
    `data.source`: the same in training and in every later evaluation.

    Args:
      config, scored: as for `open_task`.
      read: from a path to its examples, which have `take(rows)`.
      contents: from examples to the text of each, whose hash decides.
      wholes: from examples to all texts of each, joined; None: `contents` has them all.
      meaning: what `data.source` has to be, for messages.

    Raises:
      InputError: a file cannot be read, or nothing would be held out.
    """
    source = one_source(config, meaning)
    if config.data.eval_source:
        train = None
        if not scored:
            train = read(source)
        examples = read(str(as_path(config.data.eval_source)))
        if train is not None:
            whole_texts = wholes or contents
            warn_of_trained_on(config, whole_texts(train), whole_texts(examples))
        return train, examples
    examples = read(source)
    texts = contents(examples)
    out = held_out(texts, config.data.held_out, source)
    _say_held_out(texts, out, config.data.held_out, source)
    train = None
    if not scored:
        train = examples.take(np.flatnonzero(~out))
    return train, examples.take(np.flatnonzero(out))


def warn_of_trained_on(
    config: ConfigDict, trained: Iterable[str], scored: Sequence[str]
) -> None:
    """Warns if examples of `data.eval_source` are among those to train on.

    Args:
      config: of the run.
      trained, scored: the texts of each example, joined; white space does not count.
    """
    known = {' '.join(text.split()) for text in trained}
    num_known = sum(' '.join(text.split()) in known for text in scored)
    if num_known:
        say(f"warning: {num_known:,} of the {counted(len(scored), 'example')} of "
            f'config.data.eval_source={config.data.eval_source} are in {config.data.source} too, '
            'and are trained on: what is scored on them does not tell how the model does on others'
            )


def _say_held_out(texts: Sequence[str], out: np.ndarray, share: float, source: str) -> None:
    """Says how much is held out, with a warning if it is little or far from the share."""
    scored_texts = set(itertools.compress(texts, out))
    say(f"scored: {int(out.sum()):,} of {counted(len(texts), 'example')} of {source} "
        f'({len(scored_texts):,} of {len(set(texts)):,} distinct texts), held out of training '
        f'(config.data.held_out={share}); for others, name a file as config.data.eval_source')
    if len(scored_texts) < _FEW_TEXTS:
        say(f'warning: {len(scored_texts)} distinct texts are few to score: name a file of more as '
            'config.data.eval_source, or raise config.data.held_out')
    if _misses(out.mean(), share):
        say(f'warning: {out.mean():.1%} of the examples are held out, where config.data.held_out='
            f'{share} asks for {share:.1%}: equal texts are on one side, and here some '
            'are frequent; name a file as config.data.eval_source')


def held_out(contents: Sequence[str], share: float, source: str) -> np.ndarray:
    """[n] bool: which examples are held out, about `share` of them.

    Equal examples are on the same side. A hash of the content decides, so that an example stays on
    its side when others are added or removed. Only where this misses the share by more than half of
    it, because there are few distinct contents or one is very frequent, does the side of some
    contents depend on the others.

    Args:
      contents: of the n examples.
      share: from 0 to 1.
      source: the file, for the message.

    Raises:
      InputError: one of the sides would be empty.
    """
    hashes = np.array(list(map(_unit_hash, contents)))
    out = hashes < share
    if 0 < share < 1 and _misses(out.mean(), share):
        out = _nearer_share(hashes, share)
    if out.all() or not out.any():
        num_distinct = len(set(contents))
        together = ''
        if num_distinct < len(out):
            together = f' ({num_distinct} distinct texts: equal ones are on one side)'
        raise InputError(
            f'{source} has {len(out):,} examples, of which config.data.held_out={share} would '
            f'leave {int((~out).sum())} to train on and {int(out.sum())} to evaluate{together}: '
            'name a file to evaluate on, config.data.eval_source, or another share')
    return out


def _unit_hash(text: str) -> float:
    """A number in [0, 1] that only the text decides."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'little') / 2**64


def _misses(found: float, share: float) -> bool:
    """Whether a share is off by more than half of what was asked."""
    return abs(found - share) > share / 2


def _nearer_share(hashes: np.ndarray, share: float) -> np.ndarray:
    """[n] bool: the examples with hashes below `share`, after a move of whole contents.

    If too few are held out, contents follow in the order of their hashes, but never more than half
    of them: the others are needed for training. If too many are, those go back whose number of
    examples is nearest to what is too much.
    """
    contents, of_example, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    out = contents < share
    too_many = counts[out].sum() - share * len(hashes)
    most_that_follow = max(0, len(out) // 2 - out.sum())
    for i in np.flatnonzero(~out)[:most_that_follow]:
        if counts[i] < -2 * too_many:  # else the number would be off by more than before
            out[i] = True
            too_many += counts[i]
    while too_many > 0:
        i = np.abs(too_many - np.where(out, counts, 0)).argmin()
        if not out[i] or counts[i] >= 2 * too_many:
            break
        out[i] = False
        too_many -= counts[i]
    return out[of_example]
