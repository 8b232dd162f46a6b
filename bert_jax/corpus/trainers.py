"""The values of `config.data.tokenizer`: vocabularies made of text, or of a name alone."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from bert_jax.corpus.bpe_and_unigram import train_bpe, train_unigram, train_unigram_on_runs
from bert_jax.corpus.wordpiece_training import train_wordpiece, train_wordpiece_on_runs
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.text import kmers, letters
from bert_jax.text.kinds import kind_of
from bert_jax.text.wordpiece import Switches


class Wanted(NamedTuple):
    """The vocabulary that a run asks for.

    Attributes:
      tokenizer: `config.data.tokenizer`: the name of a kind, or NAME:ARGUMENT.
      vocab_size: the number of tokens; of no effect for kinds that need no text.
      lowercase: whether text is lower-cased first.
      strip_accents: whether its accents are stripped; None: as the kind does by default.
    """

    tokenizer: str
    vocab_size: int
    lowercase: bool
    strip_accents: bool | None = None

    @property
    def argument(self) -> str:
        """The part after the colon."""
        return self.tokenizer.partition(':')[2]


class Trainer(NamedTuple):
    """Makes vocabularies of a kind.

    Attributes:
      ending: of the file's name.
      train: gives the content of the file from texts.
      train_on_runs: gives it from their `wordpiece_training.counted_runs`; None: it needs texts.
      reads_text: whether it looks at the texts.
      strips_accents: whether it strips accents of lower-cased text unless it is told not to.
    """

    ending: str
    train: Callable[[Iterable[str], Wanted], str]
    train_on_runs: Callable[[Mapping[str, int], Wanted], str] | None = None
    reads_text: bool = True
    strips_accents: bool = False


def _wordpiece(texts: Iterable[str], wanted: Wanted) -> str:
    switches = Switches(wanted.strip_accents)
    return _lines(train_wordpiece(texts, wanted.vocab_size, wanted.lowercase, switches))


def _wordpiece_on_runs(runs: Mapping[str, int], wanted: Wanted) -> str:
    switches = Switches(wanted.strip_accents)
    return _lines(train_wordpiece_on_runs(runs, wanted.vocab_size, wanted.lowercase, switches))


def _bpe(texts: Iterable[str], wanted: Wanted) -> str:
    return train_bpe(texts, wanted.vocab_size, wanted.lowercase, wanted.strip_accents)


def _unigram(texts: Iterable[str], wanted: Wanted) -> str:
    return train_unigram(texts, wanted.vocab_size, wanted.lowercase, wanted.strip_accents)


def _unigram_on_runs(runs: Mapping[str, int], wanted: Wanted) -> str:
    return train_unigram_on_runs(runs, wanted.vocab_size, wanted.lowercase, wanted.strip_accents)


def _letters(texts: Iterable[str], wanted: Wanted) -> str:
    return _lines(letters.letter_tokens(wanted.argument or letters.ALL_LETTERS))


def _kmers(texts: Iterable[str], wanted: Wanted) -> str:
    if not wanted.argument.isdecimal():
        raise InputError(f'config.data.tokenizer={wanted.tokenizer!r} has no k: write kmer:6')
    return _lines(kmers.kmer_tokens(int(wanted.argument)))


def _lines(tokens: Iterable[str]) -> str:
    return ''.join(f'{token}\n' for token in tokens)


TRAINERS: Mapping[str, Trainer] = {
    'wordpiece': Trainer('.txt', _wordpiece, _wordpiece_on_runs, strips_accents=True),
    'bpe': Trainer('.json', _bpe),
    'unigram': Trainer('.json', _unigram, _unigram_on_runs),
    'letters': Trainer(letters.ENDING, _letters, reads_text=False),
    'kmer': Trainer(kmers.ENDING, _kmers, reads_text=False),
}
_WITH_ARGUMENT = ('letters', 'kmer')


def find_trainer(tokenizer: str) -> Trainer:
    """The trainer of the vocabulary that `config.data.tokenizer` names.

    Raises:
      InputError: it names none.
    """
    name, colon, _ = tokenizer.partition(':')
    if name not in TRAINERS or (colon and name not in _WITH_ARGUMENT):
        names = [*TRAINERS, 'kmer:6']
        raise InputError(f'config.data.tokenizer={tokenizer!r} is no kind of tokenizer: '
                         f'{nearest(tokenizer, names)}')
    return TRAINERS[name]


def name_in_run(vocab_file: str, tokenizer: str) -> str:
    """The name that the file of the tokenizer will have in a run directory.

    Args:
      vocab_file, tokenizer: of `config.data`.

    Raises:
      InputError: there is no `vocab_file`, and `tokenizer` names no kind.
    """
    return kind_of(vocab_file or find_trainer(tokenizer).ending).file_name


def size_to_train(wanted: Wanted) -> int:
    """The number of tokens of a vocabulary before it is made.

    Raises:
      InputError: `wanted.tokenizer` names none.
    """
    trainer = find_trainer(wanted.tokenizer)
    if trainer.reads_text:
        return wanted.vocab_size
    return len(trainer.train((), wanted).splitlines())
