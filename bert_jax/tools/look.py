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

Exit status: 0 done, 2 bad flags, configuration or text, 130 after Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags

from bert_jax.config import ConfigDict
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import pretraining_kind
from bert_jax.data.corpus import Sample, open_source
from bert_jax.data.source import Document
from bert_jax.data.store import PREPARED
from bert_jax.data.text_facts import TextFacts, facts_of
from bert_jax.runtime.errors import InputError, show
from bert_jax.runtime.files import as_path, temporary_folder
from bert_jax.runtime.process import error_boundary
from bert_jax.text import VOCABULARY_FILE, load_tokenizer, write_switches
from bert_jax.text.fertility import Fit, fit_of
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.trainers import Wanted, find_trainer
from bert_jax.text.training import counted_runs, stripped_marks_warning
from bert_jax.text.wordpiece import Switches

_MOST_DIGITS = 8  # of the size of a vocabulary
_SAMPLE_BYTES = 50_000_000
_MEASURED = 10  # every tenth document is split, the others are trained on
_FEW = 0.001  # shares of letters below it are not worth a word
_HEADER = ('pieces', 'pieces a word', 'words in one piece', 'characters a piece', '[UNK]',
           'pieces that occur')


def main(argv: Sequence[str]) -> None:
    """Runs the command (see the top of this file)."""
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # leaves an accelerator of this machine free
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
        from bert_jax.tasks.pretrain_data import weighted_sources
        from bert_jax.validation import complete, validate

        validate(config)
        if config.init_checkpoint:
            raise InputError('config.init_checkpoint brings a vocabulary of its own: leave it out, '
                             'and name that vocabulary as config.data.vocab_file')
        names = [source.name for source in weighted_sources(config.data.source)]
        for name in names:
            if name.startswith((PREPARED, 'tfrecord:')):
                raise InputError(f'{name} holds tokens and no text: name the text that they are of')
        _look(complete(config), names, sizes)


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


def _look(config: ConfigDict, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Looks at the sources of these names, and at vocabularies for all of them together.

    Raises:
      InputError: a source cannot be read, or there is too little text.
    """
    measured: list[str] = []
    trained: list[str] = []
    for name in names:
        source = open_source(name, config.data.tfds_dir, config.data.text)
        sample = Sample(source, _SAMPLE_BYTES // len(names))
        documents = list(sample)
        for line in _described(name, facts_of(documents), sample.is_cut):
            show(line)
        _divide(documents, measured, trained)
    words = counted_runs(measured)
    if not trained or not words:
        raise InputError(f"{', '.join(names)}: one document is too little to train on and to "
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


def _divide(documents: Sequence[Document], measured: list[str], trained: list[str]) -> None:
    """Adds the texts of documents to those that are split and to those that are trained on."""
    for number, document in enumerate(documents):
        texts = trained if number % _MEASURED else measured
        texts.append(document.text.decode())


def _described(name: str, facts: TextFacts, is_cut: bool) -> list[str]:
    """What a source holds, or the beginnings of its files, in two lines."""
    read = f'{facts.num_bytes / 1e6:,.1f} MB of text'
    if is_cut:
        read = f'the first {read}'
    scripts = [f'{script} {share:.1%}' for script, share in facts.scripts.items() if share > _FEW]
    if not scripts:
        scripts = ['none']
    return [
        f'{name}: {read}, {facts.num_documents:,} documents ({facts.num_duplicates:,} repeat an '
        f'earlier one), {facts.num_sentences:,} sentences, {facts.num_words:,} words',
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


if __name__ == '__main__':
    main(sys.argv)
