"""Which documents of a training text hold texts that a model is evaluated on.

A document is contaminated if it has 13 words in a row of an evaluation text, as for GPT-3 (Brown et
al., 2020, appendix C): words are compared by their letters and digits alone, without regard to
case, punctuation and white space. A text of 8 to 12 words has to be there as a whole; a shorter
one is in too many documents by chance, and is not looked for.

The words are found in the token ids of the documents, which a store is built from: each token
spells some letters, and a word has a hash of its letters that does not depend on how it is split.

    T: tokens, D: documents, P: pieces with letters, W: words, V: tokens of the vocabulary, r: runs
"""

import dataclasses
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.corpus.digests import digests, name_of
from bert_jax.corpus.document_blocks import document_blocks
from bert_jax.corpus.unsplittable import LeavingOut
from bert_jax.rows import table
from bert_jax.rows.stateless import hash64
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import find, near_file
from bert_jax.runtime.hub import parquet_files
from bert_jax.text.tokenizer import Tokenizer

RUN_WORDS = 13
FEWEST_WORDS = 8

_VERSION = 1
_FIELD = 'config.data.decontaminate'
_TEXTS_AT_ONCE = 10_000
_U64 = np.uint64
_MODULUS = 1 << 64
_MULTIPLIER = 0x9E3779B97F4A7C15  # of the polynomials over letters and words
_LONGEST_WORD = 1024  # letters, a power of two
_SPREADS = (0xD6E8FEB86659FD93, 0xC4CEB9FE1A85EC53)
_SLOTS_A_RUN = 16
_LEAST_SLOT_BITS = 16
_MOST_SLOT_BITS = 26
# Purposes of hashes.
_LETTER = 1
_PIECE = 2
_RUN = 3


class EvaluatedFile(NamedTuple):
    """How much of an evaluation file is in a training text.

    Attributes:
      name: of the file.
      num_texts: different texts in it, of 8 words or more.
      num_found: of these, how many have a run of words in some document.
      num_documents: that have such a run.
    """

    name: str
    num_texts: int
    num_found: int
    num_documents: int


class Found(NamedTuple):
    """The texts of evaluation files that some documents hold.

    Attributes:
      documents: int64 [n], contaminated documents; ascending, repeated for several files.
      files: int64 [n], numbers of the files whose texts they hold.
      runs: int64, ascending numbers of the runs of words that they hold.
    """

    documents: np.ndarray
    files: np.ndarray
    runs: np.ndarray

    @classmethod
    def joined(cls, stretches: Sequence[Self], num_documents: Sequence[int]) -> Self:
        """The findings of a part, from those of stretches of it.

        Args:
          stretches: in order.
          num_documents: of each stretch.
        """
        documents = [np.zeros(0, np.int64)]
        files = [np.zeros(0, np.int64)]
        runs = [np.zeros(0, np.int64)]
        first_document = 0
        for stretch, num in zip(stretches, num_documents, strict=True):
            documents.append(stretch.documents + first_document)
            files.append(stretch.files)
            runs.append(stretch.runs)
            first_document += num
        return cls(
            np.concatenate(documents), np.concatenate(files), np.unique(np.concatenate(runs)))


class _Letters(NamedTuple):
    """The letters that the tokens of a vocabulary spell.

    Attributes:
      hashes: uint64 [V], the polynomial over a token's letters.
      lengths: int64 [V], the number of these.
      has_letters: bool [V], whether it has some.
      begins_word: bool [V], whether no word goes on with it.
      powers: uint64, of the polynomial's multiplier: for so many letters before a token in its
        word, and again from the first for more.
    """

    hashes: np.ndarray
    lengths: np.ndarray
    has_letters: np.ndarray
    begins_word: np.ndarray
    powers: np.ndarray


def _different_pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different pairs of numbers below 2 ** 31, as two arrays, in order."""
    pairs = np.unique((first << 32) | second)  # `np.unique` of rows takes many times as long
    return pairs >> 32, pairs & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class _Groups:
    """Several values of each of n things: those of i are values[starts[i] : starts[i + 1]].

    Attributes:
      starts: int64 [n + 1].
      values: int64.
    """

    starts: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray, values: np.ndarray, size: int) -> Self:
        """Different values, from pairs of the number of a thing, below `size`, and a value."""
        numbers, values = _different_pairs(numbers, values)
        return cls(np.searchsorted(numbers, np.arange(size + 1)), values)

    def of_each(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values of things, one after the other, and for each its place in `numbers`."""
        starts = self.starts[numbers]
        counts = self.starts[numbers + 1] - starts
        places = np.repeat(np.arange(len(numbers)), counts)
        offsets = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.values[starts[places] + offsets], places


@dataclasses.dataclass(frozen=True)
class _HashSet:
    """A set of hashes, which some others seem to be in: a Bloom filter.

    Attributes:
      slots: bool, a power of two of them; true in both slots of each hash of the set.
    """

    slots: np.ndarray

    @classmethod
    def of(cls, hashes: np.ndarray) -> Self:
        """The set of these."""
        num_bits = (_SLOTS_A_RUN * len(hashes)).bit_length()
        num_bits = min(max(num_bits, _LEAST_SLOT_BITS), _MOST_SLOT_BITS)
        hash_set = cls(np.zeros(1 << num_bits, bool))
        for multiplier in _SPREADS:
            hash_set.slots[hash_set._slots_of(hashes, multiplier)] = True
        return hash_set

    def places_in(self, hashes: np.ndarray) -> np.ndarray:
        """Where hashes of an array are in the set, or seem to be; int64, ascending."""
        first, second = _SPREADS
        places = np.flatnonzero(self.slots[self._slots_of(hashes, first)])
        return places[self.slots[self._slots_of(hashes[places], second)]]

    def _slots_of(self, hashes: np.ndarray, multiplier: int) -> np.ndarray:
        """Slots of hashes, by upper bits of a product: the lower ones depend on few bits."""
        num_bits = len(self.slots).bit_length() - 1
        return ((hashes * _U64(multiplier)) >> _U64(64 - num_bits)).astype(np.intp)


class _Words:
    """The words of a block of documents, of which any run has a hash.

    Attributes:
      first_words: int64 [D + 1], the first word of each document, and the number of words.
    """

    def __init__(self, tokens: np.ndarray, bounds: np.ndarray, letters: _Letters):
        """Finds the words.

        Args:
          tokens: [T].
          bounds: int64 [D + 1], of the documents in tokens.
          letters: of the vocabulary.
        """
        ids = tokens.astype(np.intp)  # once, not at each look-up
        begins = letters.begins_word[ids]
        begins[bounds[:-1][np.diff(bounds) > 0]] = True
        kept = np.flatnonzero(letters.has_letters[ids])
        is_first = begins[kept]
        is_first[1:] |= kept[1:] > kept[:-1] + 1  # no word goes on after a token without letters
        is_first[:1] = True
        first_pieces = np.flatnonzero(is_first)
        self._hashes = _hashes_of_words(ids[kept], first_pieces, letters)
        self.first_words = np.searchsorted(kept[first_pieces], bounds)

    def hashes(self, words: np.ndarray, length: int) -> np.ndarray:
        """Hashes, uint64 [r], of the runs of `length` words that begin at `words` [r]."""
        total = np.zeros(len(words), _U64)
        for place in range(length):
            total *= _U64(_MULTIPLIER)
            total += self._hashes[words + place]
        return total

    def all_hashes(self, length: int) -> np.ndarray:
        """Hashes, uint64 [max(0, W + 1 - length)], of the runs that begin at each word."""
        num_runs = max(0, len(self._hashes) + 1 - length)
        total = np.zeros(num_runs, _U64)
        for place in range(length):
            total *= _U64(_MULTIPLIER)
            total += self._hashes[place : place + num_runs]
        return total

    def words_left(self, words: np.ndarray) -> np.ndarray:
        """How many words there are from each of `words` to the end of its document."""
        documents = self.documents_of(words)
        return self.first_words[documents + 1] - words

    def documents_of(self, words: np.ndarray) -> np.ndarray:
        """The documents of words."""
        return np.searchsorted(self.first_words, words, 'right') - 1


class _FileRuns(NamedTuple):
    """The runs of words of a file's texts.

    Attributes:
      hashes: uint64 [r], of the runs.
      beginnings: uint64 [r], of the first 8 words of each.
      texts: int64 [r], numbers of their texts.
      lengths: int64 [r], in words.
      num_texts: that have a run.
    """

    hashes: np.ndarray
    beginnings: np.ndarray
    texts: np.ndarray
    lengths: np.ndarray
    num_texts: int


@dataclasses.dataclass(frozen=True)
class _Runs:
    """The different runs of words of all files.

    Attributes:
      hashes: uint64 [r], ascending.
      files: numbers of the files that have each run.
      texts: numbers of the texts, counted over all files, that have each run.
      file_of_text: int64, the file of each text.
      beginnings: uint64 [b], ascending, hashes of the first 8 words of the runs.
      lengths: uint8 [b], the lengths of the runs with each beginning, a bit for each.
      filter: the beginnings.
    """

    hashes: np.ndarray
    files: _Groups
    texts: _Groups
    file_of_text: np.ndarray
    beginnings: np.ndarray
    lengths: np.ndarray
    filter: _HashSet

    @classmethod
    def of_files(cls, found: Sequence[_FileRuns]) -> Self:
        """The runs of all files, from those of each."""
        num_texts = np.array([file.num_texts for file in found])
        file_of_text = np.repeat(np.arange(len(found)), num_texts)
        first_texts = np.cumsum(num_texts) - num_texts
        texts = np.concatenate([
            file.texts + first for file, first in zip(found, first_texts, strict=True)])
        all_hashes = np.concatenate([file.hashes for file in found])
        hashes, numbers = np.unique(all_hashes, return_inverse=True)
        all_beginnings = np.concatenate([file.beginnings for file in found])
        beginnings, of_beginning = np.unique(all_beginnings, return_inverse=True)
        lengths = np.zeros(len(beginnings), np.uint8)
        bits = np.concatenate([_length_bit(file.lengths) for file in found])
        np.bitwise_or.at(lengths, of_beginning, bits)
        return cls(
            hashes=hashes,
            files=_Groups.of(numbers, file_of_text[texts], len(hashes)),
            texts=_Groups.of(numbers, texts, len(hashes)),
            file_of_text=file_of_text,
            beginnings=beginnings,
            lengths=lengths,
            filter=_HashSet.of(beginnings))


def _length_bit(lengths: Any) -> Any:
    """The bits, uint8, that stand for these numbers of words in `_Runs.lengths`."""
    return np.uint8(1) << np.asarray(lengths - FEWEST_WORDS, np.uint8)


def _places_among(ascending: np.ndarray, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of hashes [n] among ascending ones, which are not empty; and whether they are there.

    Returns:
      (int64 [n], bool [n]).
    """
    places = np.searchsorted(ascending, hashes)
    places[places == len(ascending)] = 0
    return places, ascending[places] == hashes


def fingerprint_of(files: str) -> str:
    """Changes with the content of evaluation files and the rules by which they are looked for.

    Args:
      files: see `Evaluated.open`.

    Raises:
      InputError: there is no such file.
    """
    contents = []
    for pattern in files.split(','):
        contents += digests(_files_of(pattern.strip()))
    return name_of([_VERSION, RUN_WORDS, FEWEST_WORDS, *contents])


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """The runs of words of evaluation files; it can be pickled.

    Attributes:
      names: of the files.
    """

    names: tuple[str, ...]
    _letters: _Letters
    _runs: _Runs

    @classmethod
    def open(cls, files: str, tokenizer: Tokenizer) -> Self:
        """Reads evaluation files.

        Args:
          files: names or patterns, comma-separated, also in buckets or on the Hugging Face hub:
            tables, of which all texts in all columns are read (and those in lists and objects of
            JSON), and plain text, of which each line is a text.
          tokenizer: that of the training text.

        Raises:
          InputError: a file is missing or cannot be read, or holds no text of 8 words; the tokens
            are no pieces of words.
        """
        if tokenizer.algorithm == 'letters' or tokenizer.algorithm.startswith('kmer'):
            raise InputError(f'{_FIELD}={files!r} compares words, and the vocabulary '
                             f'({tokenizer.algorithm}) has none: leave it empty')
        names: list[str] = []
        for pattern in files.split(','):
            names += _files_of(pattern.strip())
        letters = _letters_of(tokenizer)
        runs = [_runs_of_file(name, tokenizer, letters) for name in names]
        return cls(tuple(names), letters, _Runs.of_files(runs))

    def found(self, tokens: np.ndarray, token_bounds: np.ndarray) -> Found:
        """The texts of the files that documents hold.

        Args:
          tokens: of all documents, one after the other.
          token_bounds: int64 [D + 1]; document d is tokens[token_bounds[d] : token_bounds[d + 1]].
        """
        documents = [np.zeros(0, np.int64)]
        runs = [np.zeros(0, np.int64)]
        for first, last in document_blocks(token_bounds):
            bounds = token_bounds[first : last + 1] - token_bounds[first]
            block = tokens[token_bounds[first] : token_bounds[last]]
            words = _Words(block, bounds, self._letters)
            for places, numbers in self._found_in(words):
                documents.append(first + words.documents_of(places))
                runs.append(numbers)
        return self._summary(np.concatenate(documents), np.concatenate(runs))

    def _found_in(self, words: _Words) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(Words, runs) of each length: the runs that are found, and where each begins."""
        runs = self._runs
        hashes = words.all_hashes(FEWEST_WORDS)
        candidates = runs.filter.places_in(hashes)
        numbers, are_known = _places_among(runs.beginnings, hashes[candidates])
        candidates = candidates[are_known]
        lengths = runs.lengths[numbers[are_known]]
        words_left = words.words_left(candidates)
        for length in range(FEWEST_WORDS, RUN_WORDS + 1):
            is_tried = (lengths & _length_bit(length) != 0) & (words_left >= length)
            if not is_tried.any():
                continue
            places = candidates[is_tried]
            found = hash64(_RUN, length, words.hashes(places, length))
            numbers, are_found = _places_among(runs.hashes, found)
            yield places[are_found], numbers[are_found]

    def _summary(self, documents: np.ndarray, runs: np.ndarray) -> Found:
        """The findings, from pairs of a document and a run."""
        documents, runs = _different_pairs(documents, runs)
        files, places = self._runs.files.of_each(runs)
        documents, files = _different_pairs(documents[places], files)
        return Found(documents, files, np.unique(runs))

    def counts(self, parts: Sequence[Found]) -> list[EvaluatedFile]:
        """How much of each file is in a training text, from what each of its parts holds."""
        runs = np.unique(np.concatenate([part.runs for part in parts]))
        texts, _ = self._runs.texts.of_each(runs)
        size = len(self.names)
        num_texts = np.bincount(self._runs.file_of_text, minlength=size)
        num_found = np.bincount(self._runs.file_of_text[np.unique(texts)], minlength=size)
        num_documents = np.bincount(np.concatenate([part.files for part in parts]), minlength=size)
        columns = (num_texts.tolist(), num_found.tolist(), num_documents.tolist())
        return [EvaluatedFile(*row) for row in zip(self.names, *columns, strict=True)]


def _hashes_of_words(
    pieces: np.ndarray, first_pieces: np.ndarray, letters: _Letters
) -> np.ndarray:
    """A hash of each word, uint64 [W]: a polynomial over its letters, however it is split.

    Args:
      pieces: int64 [P], ids of tokens with letters.
      first_pieces: int64 [W], places in `pieces` where words begin, from 0.
      letters: of the vocabulary.
    """
    hashes = letters.hashes[pieces[first_pieces]]
    num_letters = letters.lengths[pieces[first_pieces]]
    ends = np.append(first_pieces[1:], len(pieces))
    # Most words are one token; the second token of all others is added at once, then the third, ...
    place = 1
    words = np.flatnonzero(first_pieces + place < ends)
    while len(words):
        added = pieces[first_pieces[words] + place]
        powers = letters.powers[num_letters[words] & (_LONGEST_WORD - 1)]
        hashes[words] += letters.hashes[added] * powers
        num_letters[words] += letters.lengths[added]
        place += 1
        words = words[first_pieces[words] + place < ends[words]]
    return hashes


def _files_of(pattern: str) -> list[str]:
    """The names of the files that a name or pattern means.

    Raises:
      InputError: there are none.
    """
    found = [file.path for path in parquet_files(pattern) for file in find(path)]
    if not found:
        remedy = near_file(pattern) or 'name tables or text files, comma-separated'
        raise InputError(f'{_FIELD}: no file matches {pattern!r}: {remedy}')
    return found


def _letters_of(tokenizer: Tokenizer) -> _Letters:
    """The letters that the tokens of a tokenizer's vocabulary spell."""
    vocab = tokenizer.vocab
    hashes = np.zeros(len(vocab), _U64)
    lengths = np.zeros(len(vocab), np.int64)
    codes: dict[str, int] = {}
    for token in range(len(vocab)):
        shown = tokenizer.shown(token)
        if token == vocab.unk_id or '\ufffd' in shown:
            # No letters that could be compared: such a token is one of its own.
            spelt = [int(hash64(_PIECE, token))]
        else:
            spelt = [_code(char, codes) for char in shown.casefold() if _is_compared(char)]
        hashes[token] = _polynomial(spelt)
        lengths[token] = len(spelt)
    powers = [pow(_MULTIPLIER, exponent, _MODULUS) for exponent in range(_LONGEST_WORD)]
    return _Letters(
        hashes, lengths, has_letters=lengths > 0, begins_word=~vocab.is_continuation,
        powers=np.array(powers, _U64))


def _is_compared(char: str) -> bool:
    """Whether a character is a letter, digit or mark, such as a vowel sign of Hindi."""
    return unicodedata.category(char)[0] in 'LNM'


def _code(char: str, codes: dict[str, int]) -> int:
    """A random number that stands for a character, remembered in `codes`."""
    if char not in codes:
        codes[char] = int(hash64(_LETTER, ord(char)))
    return codes[char]


def _polynomial(codes: Sequence[int]) -> int:
    """The sum of codes, each times the multiplier to the power of its place."""
    total = 0
    for code in reversed(codes):
        total = (total * _MULTIPLIER + code) % _MODULUS
    return total


def _runs_of_file(name: str, tokenizer: Tokenizer, letters: _Letters) -> _FileRuns:
    """The runs of words of an evaluation file.

    Raises:
      InputError: it cannot be read, or has no text of 8 words.
    """
    hashes: list[np.ndarray] = []
    beginnings: list[np.ndarray] = []
    texts: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    num_texts = 0
    different = list(dict.fromkeys(_texts_of(name)))
    leaving_out = LeavingOut(tokenizer)
    for start in range(0, len(different), _TEXTS_AT_ONCE):
        tokens, counts = leaving_out.encode_joined(different[start : start + _TEXTS_AT_ONCE])
        words = _Words(tokens, np.concatenate([[0], np.cumsum(counts)]), letters)
        num_words = np.diff(words.first_words)
        numbers = np.cumsum(num_words >= FEWEST_WORDS) - 1 + num_texts
        for length in range(FEWEST_WORDS, RUN_WORDS + 1):
            begin = _beginnings_of_runs(words.first_words, length)
            if len(begin):
                hashes.append(hash64(_RUN, length, words.hashes(begin, length)))
                beginnings.append(words.hashes(begin, FEWEST_WORDS))
                texts.append(numbers[words.documents_of(begin)])
                lengths.append(np.full(len(begin), length))
        num_texts += int((num_words >= FEWEST_WORDS).sum())
    if not num_texts:
        raise InputError(f'{_FIELD}: {name} has no text of {FEWEST_WORDS} words or more: leave it '
                         'out')
    return _FileRuns(np.concatenate(hashes), np.concatenate(beginnings), np.concatenate(texts),
                     np.concatenate(lengths), num_texts)


def _beginnings_of_runs(first_words: np.ndarray, length: int) -> np.ndarray:
    """The words where runs of a length begin: all of 13 words, else the texts that are as long."""
    num_words = np.diff(first_words)
    starts = first_words[:-1]
    if length < RUN_WORDS:
        return starts[num_words == length]
    num_runs = np.maximum(num_words - RUN_WORDS + 1, 0)
    in_text = np.arange(num_runs.sum()) - np.repeat(np.cumsum(num_runs) - num_runs, num_runs)
    return np.repeat(starts, num_runs) + in_text


def _texts_of(name: str) -> Iterator[str]:
    """The texts of an evaluation file: of all cells of a table, or the lines of plain text."""
    if not table.format_of(name):
        for line in table.lines(name):
            yield line.text
        return
    for row in table.all_rows(name):
        if row.fault:
            raise InputError(f'{name}, line {row.line}: {row.fault}: correct the row')
        for cell in row.cells:
            yield from _texts_in(cell)


def _texts_in(value: Any) -> Iterator[str]:
    """The texts in a cell or a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts_in(item)
