"""Says what a text holds, and how vocabularies of several sizes would split it. Makes nothing.

    python -m bert_jax.tools.look --config=configs/base_pretrain.py \\
        --config.data.source=wikidump:hiwiki-latest-pages-articles.xml.bz2 \\
        --config.data.lowercase=False --vocab_sizes=8000,16000,32000

Of each source: documents, sentences, words, how many documents repeat an earlier one byte for byte,
the scripts of its letters and the share of capitals. Then a table: vocabularies of these sizes, of
the kind config.data.tokenizer, are trained on nine tenths of the documents, and split the words of
the others. A config.data.vocab_file is a row too, to compare with.

  pieces a word       the vocabulary's fertility; a word is what stands between white space
  words in one piece  their share
  characters a piece  for scripts that do not divide words with spaces, look at this one
  [UNK]               share of the pieces that the vocabulary does not know: lost to the model
  pieces that occur   share of the vocabulary in that tenth; rare pieces learn little

Of a large text, the first 50 MB are read, an equal share of each file: so duplicates that are far
apart are not seen here. bert_jax.tools.prepare counts all.

What a model got wrong:

    python -m bert_jax.tools.look RUN --errors
    python -m bert_jax.tools.look RUN --errors --by=COLUMN --most=50 --json

Of a finished run on labelled texts, or of the folder of an evaluation, it reads the tables
SPLIT_examples.csv and prints the rows with the least probability of their label, which labels are
taken for which, rows with nearly equal texts and different labels, and the share of wrong rows by
length, by set, and by a column of the file that was scored. Of numbers, wrong is the distance.

What is kept in a data.dir:

    python -m bert_jax.tools.look DIR --stores
    python -m bert_jax.tools.look DIR --stores --remove

It lists the token stores: of finished ones their text, of others how many shares they have, and who
is at work on them or since when nobody was. What nobody has been at work on for a day, --remove
removes (the command that began it would go on with it). A finished one is deleted as a folder.

Exit status: 0 done, 2 bad flags, configuration or text, 130 after Ctrl-C.
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence

from absl import flags

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import Parser, at_least, parse_command
from bert_jax.config.fields import pretraining_kind
from bert_jax.corpus import kept_stores
from bert_jax.corpus.fertility import Fit, fit_of
from bert_jax.corpus.source import Document
from bert_jax.corpus.sources import Sample, TextSpec, open_source, shares_of
from bert_jax.corpus.text_facts import TextFacts, facts_of
from bert_jax.corpus.trainers import Wanted, find_trainer
from bert_jax.corpus.wordpiece_training import counted_runs, stripped_marks_warning
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, counted, show
from bert_jax.runtime.files import Path, as_path, temporary_folder
from bert_jax.runtime.process import error_boundary
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.settings import VOCABULARY_FILE
from bert_jax.text.switches import write_switches
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import Switches
from bert_jax.tools import wrong_rows

_MOST_DIGITS = 8  # of the size of a vocabulary
_SAMPLE_BYTES = 50_000_000
_MEASURED = 10  # every tenth document is split, the others are trained on
_FEW = 0.001  # shares of letters below it are not worth a word
_HEADER = ('pieces', 'pieces a word', 'words in one piece', 'characters a piece', '[UNK]',
           'pieces that occur')
_LONGEST_CELL = 100  # characters of a text in a table
_MOST_CONFUSIONS = 10


def main(argv: Sequence[str]) -> None:
    """Runs the command (see the top of this file)."""
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # leaves an accelerator of this machine free
    if '--errors' in argv:
        _look_at_errors(argv[1:])
        return
    if '--stores' in argv:
        _look_at_stores(argv[1:])
        return
    options = flags.FlagValues()
    flags.DEFINE_list(
        'vocab_sizes', ['8000', '16000', '32000'], 'Sizes of vocabularies.', flag_values=options)
    with error_boundary():
        config, _ = parse_command(argv, __doc__ or '', options)
        sizes = _sizes(options.vocab_sizes)
        if pretraining_kind(config.task) != 'pretrain':
            raise InputError(f'config.task={config.task!r} trains no vocabulary: name a config of '
                             'pre-training')
        # Imported here, because they import jax, which then reads JAX_PLATFORMS.
        from bert_jax.completion import complete
        from bert_jax.config.mixtures import weighted_sources
        from bert_jax.validation import validate

        validate(config)
        if config.init_checkpoint:
            raise InputError('config.init_checkpoint brings a vocabulary of its own: leave it out, '
                             'and name that vocabulary as config.data.vocab_file')
        weights = dict(weighted_sources(config.data.source))
        for name in weights:
            if TextSpec(name).kind.open is None:
                raise InputError(f'{name} holds tokens and no text: name the text that they are of')
        _look(complete(config), weights, sizes)


def _sizes(texts: Sequence[str]) -> list[int]:
    """The numbers of --vocab_sizes.

    Raises:
      InputError: one is no number, or larger than a vocabulary may be.
    """
    for text in texts:
        digits = text.strip()
        if not digits.isdecimal() or digits.startswith('0') or len(digits) > _MOST_DIGITS:
            raise InputError(f'--vocab_sizes={text} is no number of pieces: write 8000,16000,32000')
    return [int(text) for text in texts]


def _look(config: ConfigDict, weights: Mapping[str, float], sizes: Sequence[int]) -> None:
    """Looks at sources, and at vocabularies for all of them together.

    Args:
      config: completed.
      weights: of the sources, by name.
      sizes: of the vocabularies.

    Raises:
      InputError: a source cannot be read, or there is too little text.
    """
    samples: list[list[Document]] = []
    source_sizes: list[int] = []
    for name in weights:
        source = open_source(name, config.data.tfds_dir, config.data.text or 'text')
        sample = Sample(source, _SAMPLE_BYTES // len(weights))
        documents = list(sample)
        for line in _described(name, facts_of(documents), sample.is_cut):
            show(line)
        samples.append(documents)
        source_sizes.append(sample.whole_size(_num_bytes(documents)))
    shares = shares_of(source_sizes, list(weights.values()), config.data.mix_power)
    measured: list[str] = []
    trained: list[str] = []
    for documents, times in zip(samples, _times(samples, shares), strict=True):
        _divide(documents, times, measured, trained)
    words = counted_runs(measured)
    if not trained or not words:
        raise InputError(f"{', '.join(weights)}: one document is too little to train on and to "
                         'measure: separate documents by a blank line')
    _say_marks(config, trained)
    show('| ' + ' | '.join(_HEADER) + ' |')
    show('|' + '---|' * len(_HEADER))
    if config.data.vocab_file:
        named = load_tokenizer(config.data.vocab_file, config.data.lowercase)
        show(_row(f'{len(named.vocab):,}, {config.data.vocab_file}', fit_of(named, words)))
    for size in sizes:
        tokenizer = _trained(config, trained, size)
        show(_row(f'{len(tokenizer.vocab):,}', fit_of(tokenizer, words)))


def _num_bytes(documents: Sequence[Document]) -> int:
    return sum(len(document.text) for document in documents)


def _times(samples: Sequence[Sequence[Document]], shares: Sequence[float]) -> list[float]:
    """How often each sample is in a mixture with these shares, in which one of them is once."""
    if len(samples) == 1:
        return [1.0]
    times = [share / max(_num_bytes(documents), 1)
             for documents, share in zip(samples, shares, strict=True)]
    times = [each / min(times) for each in times]
    total = sum(each * _num_bytes(documents)
                for documents, each in zip(samples, times, strict=True))
    return [each * min(1.0, _SAMPLE_BYTES / max(total, 1)) for each in times]


def _divide(
    documents: Sequence[Document], times: float, measured: list[str], trained: list[str]
) -> None:
    """Adds the texts of documents to those that are split and to those that are trained on.

    Args:
      documents: of a source.
      times: how often they are taken; the last time may be of the first of them.
      measured, trained: the texts.
    """
    for texts, is_measured in ((measured, True), (trained, False)):
        own = [document.text.decode() for number, document in enumerate(documents)
               if (number % _MEASURED == 0) == is_measured]
        whole_times = int(times)
        texts += whole_times * own
        texts += own[: math.ceil((times - whole_times) * len(own))]


def _described(name: str, facts: TextFacts, is_cut: bool) -> list[str]:
    """The content of a source, or of the beginnings of its files, in two lines."""
    read = f'{facts.num_bytes / 1e6:,.1f} MB of text'
    if is_cut:
        read = f'the first {read}'
    scripts = [f'{script} {share:.1%}' for script, share in facts.scripts.items() if share > _FEW]
    if not scripts:
        scripts = ['none']
    return [
        f'{name}: {read}, '
        f"{counted(facts.num_documents, 'document')} ({facts.num_duplicates:,} repeat an earlier "
        f"one), {counted(facts.num_sentences, 'sentence')}, {counted(facts.num_words, 'word')}",
        f"{name}: letters are {', '.join(scripts)}; {facts.capitals:.1%} of them are capitals"]


def _say_marks(config: ConfigDict, texts: Sequence[str]) -> None:
    """Says what an uncased WordPiece would drop as accents that are none."""
    strips = find_trainer(config.data.tokenizer).strips_accents
    if strips and config.data.lowercase and config.data.strip_accents is None:
        warning = stripped_marks_warning(texts)
        if warning:
            show(warning)


def _trained(config: ConfigDict, texts: Sequence[str], size: int) -> Tokenizer:
    """A vocabulary of the kind that the config names.

    Raises:
      InputError: that kind is not trained, or the size has no room for any character.
    """
    data = config.data
    trainer = find_trainer(data.tokenizer)
    if not trainer.reads_text:
        raise InputError(f'config.data.tokenizer={data.tokenizer!r} is not trained on text: there '
                         'is no size to choose')
    wanted = Wanted(data.tokenizer, size, data.lowercase, data.strip_accents)
    with temporary_folder() as folder:
        path = as_path(folder) / f'vocab{trainer.ending}'
        path.write_text(trainer.train(texts, wanted))
        if path.name == VOCABULARY_FILE:
            write_switches(as_path(folder), Switches(data.strip_accents))
        return load_tokenizer(path, data.lowercase)


def _row(pieces: str, fit: Fit) -> str:
    """The row of a vocabulary."""
    cells = [
        pieces, f'{fit.pieces_a_word:.2f}', f'{fit.whole_words:.1%}',
        f'{fit.characters_a_piece:.2f}', f'{fit.unknown:.2%}', f'{fit.used:.0%}']
    return '| ' + ' | '.join(cells) + ' |'


def _look_at_errors(arguments: Sequence[str]) -> None:
    """Prints what a model got wrong.

    Args:
      arguments: of the command line, with --errors.
    """
    parser = Parser('python -m bert_jax.tools.look', __doc__)
    parser.add_argument('folder', metavar='RUN', help='a run, or the folder of an evaluation')
    parser.add_argument('--errors', action='store_true', help='what a model got wrong')
    parser.add_argument('--by', metavar='COLUMN', default='',
                        help='a further column of the file that was scored')
    parser.add_argument('--most', type=at_least(1), default=20, help='rows that are printed')
    parser.add_argument('--json', action='store_true', help='prints one JSON object')
    options = parser.parse_args(arguments)
    with error_boundary():
        folder = as_path(options.folder)
        rows = wrong_rows.scored_rows(folder)
        columns: list[wrong_rows.Group] = []
        if options.by:
            columns = wrong_rows.by_column(rows, folder, options.by)
        if options.json:
            show(json.dumps(wrong_rows.report(rows, options.most, columns), ensure_ascii=False))
            return
        _show_errors(rows, options.most)
        _show_groups('characters', wrong_rows.by_length(rows))
        sets = wrong_rows.by_set(rows)
        if len(sets) > 1:
            _show_groups('set', sets)
        if columns:
            _show_groups(options.by, columns[: options.most])


def _look_at_stores(arguments: Sequence[str]) -> None:
    """Prints what is kept in a data.dir, and removes what is left there, if that is asked for.

    Args:
      arguments: of the command line, with --stores.
    """
    parser = Parser('python -m bert_jax.tools.look', __doc__)
    parser.add_argument('folder', metavar='DIR', help='a data.dir')
    parser.add_argument('--stores', action='store_true', help='what is kept there')
    parser.add_argument('--remove', action='store_true',
                        help='removes what nobody has been at work on for a day')
    options = parser.parse_args(arguments)
    with error_boundary():
        folder = as_path(options.folder)
        stores = kept_stores.kept_stores(folder)
        if not stores:
            raise InputError(f'{folder} holds no token stores: name a config.data.dir')
        cells: list[list[str]] = []
        for store in stores:
            cells.append([store.path.name, f'{store.num_bytes / 1e6:,.1f}', *_state(store)])
        _show_table(['store', 'MB', 'state', 'text'], cells)
        left = [store for store in stores if store.is_left]
        lists = kept_stores.lists_of_nothing(folder)
        if options.remove:
            _remove(folder, left, lists)
            return
        for path in lists:
            show(f'{path} lists the shares of a store that is gone: --remove removes it')
        if left:
            num_bytes = sum(store.num_bytes for store in left)
            show(f"{counted(len(left), 'store')} unfinished, and nobody at work on for a day, "
                 f'{num_bytes / 1e6:,.1f} MB: the command that began it goes on with it; --remove '
                 'removes what is left')


def _state(store: kept_stores.KeptStore) -> tuple[str, str]:
    """How far a store is, and its text."""
    if store.source:
        return 'finished', store.source
    done = f"unfinished, {counted(store.num_done, 'share')} done"
    if store.worker:
        return f'{done}, {store.worker} is at work', ''
    return f'{done}, nobody at work for {store.idle_seconds / 3600:,.0f} h', ''


def _remove(
    folder: Path, left: Sequence[kept_stores.KeptStore], lists: Sequence[Path]
) -> None:
    """Removes from a data.dir stores that are left, and lists of those that are gone."""
    for store in left:
        if kept_stores.remove(store):
            show(f'removed: {store.path}')
        else:
            show(f'kept: {store.path}: another process is at work on it now')
    files.remove_leftovers(folder / 'stores')  # of a removal that was killed
    for path in lists:
        path.unlink(missing_ok=True)
        show(f'removed: {path}')


def _show_errors(rows: Sequence[wrong_rows.ScoredRow], most: int) -> None:
    """Prints the wrongest rows, the confusions and the contradictions, as far as there are any."""
    if rows[0].has_number:
        how_wrong = 'distance'
        show(f"{counted(len(rows), 'row')}; those whose numbers are missed by most:")
    else:
        how_wrong = 'probability'
        num_wrong = sum(row.is_wrong for row in rows)
        show(f'{num_wrong:,} of {counted(len(rows), "row")} wrong ({num_wrong / len(rows):.1%}); '
             'those whose label has the least probability:')
    cells = []
    for row in wrong_rows.wrongest(rows)[:most]:
        record = row.record()
        cells.append([row.id, row.label, f'{record[how_wrong]:.3g}', row.prediction, _text(row)])
    _show_table(['row', 'label', how_wrong, 'prediction', 'text'], cells)
    confusions = wrong_rows.confusions(rows)[:_MOST_CONFUSIONS]
    if confusions:
        show('what is taken for what:')
        _show_table(['label', 'prediction', 'rows'], confusions)
    pairs = wrong_rows.contradictions(rows)
    if pairs:
        show(f"{counted(len(pairs), 'pair')} of nearly equal texts with different labels, of which "
             'one may be a mistake:')
        members = [row for pair in pairs[:most] for row in pair]
        _show_table(['row', 'label', 'text'], [[row.id, row.label, _text(row)] for row in members])


def _show_groups(name: str, groups: Sequence[wrong_rows.Group]) -> None:
    """Prints how wrong groups of rows are."""
    _show_table([name, 'rows', 'wrong'], [[x.name, x.rows, f'{x.wrong:.3g}'] for x in groups])


def _text(row: wrong_rows.ScoredRow) -> str:
    """The texts of a row on one line, shortened."""
    text = ' '.join(' | '.join(row.texts).split())
    return text if len(text) <= _LONGEST_CELL else f'{text[:_LONGEST_CELL]}...'


def _show_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table whose columns stand below each other, if it has rows."""
    if not rows:
        return
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        show('  ' + '  '.join(padded).rstrip())


if __name__ == '__main__':
    main(sys.argv)
