"""Training byte-level BPE and Unigram for the package `tokenizers`, into a tokenizer.json.

BERT's special tokens come first, [PAD] with the id 0, and frame texts as BERT does. In a text they
are text like any other, as for WordPiece: the files do not list them as added tokens.
"""

import collections
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import sentencepiece

from bert_jax.corpus.wordpiece_training import counted_runs
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import CLS, SEP, SPECIAL_TOKENS, UNK

_BYTES = 256
_CHARACTER_COVERAGE = 0.9995
_MAX_TRAINED_WORDS = 1_000_000
_MAX_WORD_CHARS = 512  # of sentencepiece's trainer, for one word
_WHITE_SPACE = re.compile(r'\s+')


def train_bpe(
    texts: Iterable[str], vocab_size: int, lowercase: bool, strip_accents: bool | None = None
) -> str:
    """Trains byte-level BPE, with a piece for each byte, so that no text has [UNK].

    Every text begins as if a space stood before it, so that a word has the same pieces wherever it
    stands.

    The result depends on the texts and the arguments only, and not on the number of threads.

    Args:
      texts: lines, paragraphs or documents.
      vocab_size: the number of tokens wanted.
      lowercase: whether text is lower-cased first.
      strip_accents: whether its accents are stripped; None: they are not.

    Returns:
      The content of a tokenizer.json, with fewer tokens where the text holds no more.

    Raises:
      InputError: `vocab_size` is too small for the bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    least = len(SPECIAL_TOKENS) + _BYTES
    if vocab_size <= least:
        raise InputError(f'vocab_size={vocab_size} leaves no room beside the special tokens and '
                         f'the {_BYTES} bytes: take more than {least}, better thousands')
    library = Tokenizer(models.BPE())
    library.normalizer = _normalizer(lowercase, strip_accents)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return _finished(library)


def train_unigram(
    texts: Iterable[str], vocab_size: int, lowercase: bool, strip_accents: bool | None = None
) -> str:
    """Trains a Unigram vocabulary. Arguments, result and errors are as for `train_bpe`.

    Characters that make up less than 0.05 % of the text are [UNK]. SentencePiece learns the pieces
    with one thread: the trainer of `tokenizers` gives others each time.
    """
    return train_unigram_on_runs(counted_runs(texts), vocab_size, lowercase, strip_accents)


def train_unigram_on_runs(
    runs: Mapping[str, int], vocab_size: int, lowercase: bool, strip_accents: bool | None = None
) -> str:
    """Trains a Unigram vocabulary on the `counted_runs` of texts; see `train_unigram`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    normalizer = _normalizer(lowercase, strip_accents)
    counts: collections.Counter[str] = collections.Counter()
    for run, count in runs.items():
        for word in _WHITE_SPACE.split(normalizer.normalize_str(run)):
            if 0 < len(word) <= _MAX_WORD_CHARS:
                counts[word] += count
    if not counts:
        raise InputError('the training text holds no words; check data.source')
    num_pieces = vocab_size - len(SPECIAL_TOKENS)
    pieces = _learn_unigram(counts, num_pieces)
    unknown = SPECIAL_TOKENS.index(UNK)
    vocab = [(token, 0.0) for token in SPECIAL_TOKENS] + pieces
    library = Tokenizer(models.Unigram(vocab, unk_id=unknown, byte_fallback=False))
    library.normalizer = normalizer
    names = '|'.join(token.strip('[]') for token in SPECIAL_TOKENS)
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(),
        # So that no piece of a text is a special token.
        pre_tokenizers.Split(Regex(rf'\[(?=(?:{names})\])'), 'merged_with_previous')])
    library.decoder = decoders.Metaspace()
    return _finished(library)


def _normalizer(lowercase: bool, strip_accents: bool | None) -> Any:
    """Unicode's composed form, in lower case or without accents where that is asked for."""
    from tokenizers import normalizers

    steps: list[Any] = []
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    steps.append(normalizers.NFC())
    return normalizers.Sequence(steps)


def _learn_unigram(counts: Mapping[str, int], num_pieces: int) -> list[tuple[str, float]]:
    """Up to `num_pieces` pieces with their log probabilities, likeliest first.

    Args:
      counts: of words.
      num_pieces: wanted.

    Raises:
      InputError: they are too few for the characters.
    """
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))[:_MAX_TRAINED_WORDS]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=(f'{word}\t{counts[word]}' for word in by_frequency),
            input_format='tsv', model_writer=model, model_type='unigram',
            vocab_size=num_pieces + 1, hard_vocab_limit=False,
            character_coverage=_CHARACTER_COVERAGE, normalization_rule_name='identity',
            unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1, num_threads=1, minloglevel=2)
    except RuntimeError:
        raise InputError(
            f'vocab_size={num_pieces + len(SPECIAL_TOKENS)} is too small for the characters of the '
            'text: take more, better thousands') from None
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(1, processor.GetPieceSize())
    return [(processor.IdToPiece(i), processor.GetScore(i)) for i in ids]


def _finished(library: Any) -> str:
    """The tokenizer.json of a trained tokenizer, with BERT's frame."""
    from tokenizers import Tokenizer, processors

    index = library.get_vocab()
    library.post_processor = processors.TemplateProcessing(
        single=f'{CLS} $A {SEP}',
        pair=f'{CLS} $A {SEP} $B:1 {SEP}:1',
        special_tokens=[(token, index[token]) for token in (CLS, SEP)])
    parts = json.loads(library.to_str())
    return str(Tokenizer.from_str(json.dumps(parts | {'added_tokens': []})).to_str())
