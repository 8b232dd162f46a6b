"""Any tokenizer of Hugging Face's `tokenizers`, from its tokenizer.json.

The library splits the text: byte-level BPE (RoBERTa, GPT-2, ModernBERT), Unigram (XLM-R,
CamemBERT), WordPiece with other normalizers. So ids are those of transformers, special tokens in a
text included. What the file does not say, the files beside it do, as in transformers.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError, needing, tell_once
from bert_jax.runtime.hashing import digest
from bert_jax.text.added import MOST_TOKENS, AddedToken
from bert_jax.text.classes import algorithm_in, follow_class, frame_of_class, token_in
from bert_jax.text.coinciding import check_distinct
from bert_jax.text.growth import Growth, steps_of
from bert_jax.text.library import (
    Library,
    LibraryError,
    LibraryPanic,
    Unsplittable,
    library_errors,
    panicking_silently,
)
from bert_jax.text.templates import ends_of, frame_of_library
from bert_jax.text.tokenizer import Encoding, Place, Split, Tokens, joined
from bert_jax.text.vocab import Vocab, unused_row

WORD_START = '\u2581'  # "lower one eighth block" stands for the space before a word
# By role: its names in tokenizer_config.json, and what tokenizers call the token.
_ROLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    'cls': (('cls_token', 'bos_token'), (
        '[CLS]', '<s>', '<cls>', '<|startoftext|>', '<|begin_of_text|>')),
    'sep': (('sep_token', 'eos_token'), (
        '[SEP]', '</s>', '<sep>', '<eos>', '<|endoftext|>', '<|end_of_text|>')),
    'pad': (('pad_token',), ('[PAD]', '<pad>', '<|padding|>')),
    'mask': (('mask_token',), ('[MASK]', '<mask>', '<|mask|>')),
    'unk': (('unk_token',), ('[UNK]', '<unk>')),
}
# What a model draws by: dropout of merges; sampling of pieces.
_DRAWS = ('dropout', 'alpha', 'nbest_size', 'enable_sampling')
_GROUP = 1000  # texts that are split together once one of all cannot be
_SURROGATES = range(0xD800, 0xE000)
_RARE_LETTER = '\U00013000'  # an Egyptian hieroglyph


class HuggingFaceTokenizer:
    """Splits texts as `tokenizers` does with a tokenizer.json.

    Added tokens are found in a text, special ones among them, unless a tokenizer_config.json beside
    the file has `split_special_tokens`; those of vocabularies that are trained here are not added.
    The leading space of byte-level BPE is part of a piece, and no part of the piece's place.

    Attributes:
      vocab: the pieces and added tokens. A piece continues a word unless it has the mark of a space
        before it (byte-level BPE, SentencePiece's kinds), or if it has `##` (WordPiece).
      algorithm: 'bpe', 'unigram', 'wordpiece' or 'wordlevel'.
      content: of the tokenizer.json.
      beside: the files beside it that count, by name, with their content.
      adds_prefix_space: whether byte-level BPE puts a space before each text.
      finds_special_tokens: whether [MASK] in a text is the special token, and not text.
    """

    lowercase = None  # a tokenizer.json has its own normalizer

    def __init__(
        self, content: str, beside: Mapping[str, str] | None = None,
        added_tokens: Iterable[AddedToken] = (), source: str = 'tokenizer.json',
    ):
        """Makes a tokenizer.

        Args:
          content: of a tokenizer.json.
          beside: the content of the files beside it, by name: `tokenizer_config.json` and
            `special_tokens_map.json` say which tokens are special ones.
          added_tokens: tokens that the files beside it name; those that it has already are left.
          source: what messages call it.

        Raises:
          InputError: the library cannot read it, or a special token but [UNK] is missing.
        """
        self.content = content
        self.beside = dict(beside or {})
        self._source = source
        fields = _fields_of(self.beside, source)
        parts = _parts_of(content, source)
        self._growth = Growth(parts, source)
        self._library = _read_library(content, source)
        follows_class = follow_class(parts, fields, source)
        self._draws = _take_draws(parts)
        if follows_class or self._draws:
            self._library = _read_library(json.dumps(parts), source)
        for setting in self._draws:
            tell_once(f'note: {source}: {setting} is not applied: it draws the pieces of a text '
                      'anew each time, and here a text always has the same')
        sampling = fields.get('sp_model_kwargs')
        if isinstance(sampling, Mapping) and sampling.get('enable_sampling'):
            tell_once(f'note: {source}: sp_model_kwargs={dict(sampling)!r:.100} of the file beside '
                      'it is not applied: here a text always has the same pieces')
        self.algorithm = algorithm_in(parts).lower()
        self.adds_prefix_space = _adds_prefix_space(parts)
        names = _names_of_roles(fields)
        self._add(added_tokens, source)
        self._add_special(names)
        splits_special = fields.get('split_special_tokens') is True
        if splits_special:
            self._library.treat_special_tokens_as_text()
        self._marks = _marks_of(parts)
        with panicking_silently():
            self.vocab = self._make_vocab(parts, names, fields, source)
            has_unknown = self._check_unknown(source)
            self._before_word = self._find_before_word()
        added = self._library.get_added_tokens_decoder()
        self.finds_special_tokens = self.vocab.mask_id in added and not splits_special
        check_distinct(_ids_by_role(self.vocab), has_unknown, source)
        if self.vocab.template is None:
            tell_once(f'note: {source} puts no special tokens around texts: here they are framed '
                      'as [CLS] A [SEP] B [SEP]')

    def _add(self, tokens: Iterable[AddedToken], source: str) -> None:
        """Adds the tokens that the library does not have.

        Raises:
          InputError: one gets another id than the files say.
        """
        from tokenizers import AddedToken as LibraryToken

        for token in tokens:
            if self._library.token_to_id(token.content) is not None:
                continue
            self._growth.check(token.content)
            flags = dataclasses.asdict(token)
            del flags['content'], flags['id']
            self._library.add_tokens([LibraryToken(token.content, **flags)])
            number = self._library.token_to_id(token.content)
            if token.id not in (None, number):
                raise InputError(
                    f'{source}: the added token {token.content!r} has the id {token.id} in the '
                    f'files beside it, and the next that is free is {number}: put the files of '
                    'one tokenizer together')

    def _add_special(self, names: Mapping[str, str]) -> None:
        """Lets the special tokens that the files beside tokenizer.json name be found in texts."""
        added = self._library.get_added_tokens_decoder().values()
        known = {token.content for token in added}
        for name in names.values():
            if name not in known:
                self._library.add_special_tokens([name])
                known.add(name)

    def _make_vocab(
        self, parts: Mapping[str, Any], names: Mapping[str, str], fields: Mapping[str, Any],
        source: str,
    ) -> Vocab:
        """The vocabulary.

        Args:
          parts: of the tokenizer.json.
          names: of the special tokens by role, as far as the files beside it say.
          fields: of these files.
          source: for messages.

        Raises:
          InputError: an id is too large, or a special token but [UNK] is missing.
        """
        index = self._library.get_vocab(with_added_tokens=True)
        largest = max(index.values(), default=0)
        if largest >= MOST_TOKENS:
            raise InputError(f'{source} has a token with the id {largest:,}: ids are below '
                             f'{MOST_TOKENS:,}; download it again')
        tokens = [unused_row(i) for i in range(largest + 1)]
        for token, i in index.items():
            tokens[i] = token
        added = self._library.get_added_tokens_decoder()
        is_continuation = np.zeros(len(tokens), np.bool_)
        for i in index.values():
            is_continuation[i] = not self._marks.begins_word(tokens[i])
        frame = frame_of_library(
            self._library, parts, fields.get('truncation_side'), len(tokens), source)
        frame = frame_of_class(frame, algorithm_in(parts), fields, index, source)
        ids = _ids_of_roles(index, names, ends_of(frame, tokens), parts, source)
        self._added_ids = frozenset((*added, *ids.values()))
        for i in self._added_ids:
            is_continuation[i] = False
        is_continuation.flags.writeable = False
        return Vocab(
            tuple(tokens),
            pad_id=ids['pad'],
            unk_id=ids.get('unk'),
            cls_id=ids['cls'],
            sep_id=ids['sep'],
            mask_id=ids['mask'],
            is_continuation=is_continuation,
            num_separators=(frame and frame.num_separators) or 1,
            template=frame)

    def _check_unknown(self, source: str) -> bool:
        """Whether a character that the library lacks is [UNK].

        Raises:
          InputError: it has nothing to put for it.
        """
        try:
            encoding = self._library.encode(_RARE_LETTER, add_special_tokens=False)
            return self.vocab.unk_id in encoding.ids
        except LibraryPanic as error:
            raise InputError(f'{source}: tokenizers cannot split texts by it ({error}): take '
                             'another tokenizer') from None
        except LibraryError as error:
            raise InputError(f'{source} has no token for what is not in its vocabulary '
                             f'({error}): name one as unk_token (unk_id) of its model'
                             ) from None

    @property
    def names_of_special_tokens(self) -> dict[str, str]:
        """The special tokens by their names in a tokenizer_config.json."""
        vocab = self.vocab
        names = {
            'pad_token': vocab.tokens[vocab.pad_id],
            'cls_token': vocab.tokens[vocab.cls_id],
            'sep_token': vocab.tokens[vocab.sep_id],
            'mask_token': vocab.tokens[vocab.mask_id],
        }
        if vocab.unk_id is not None:
            names['unk_token'] = vocab.tokens[vocab.unk_id]
        return names

    def _find_before_word(self) -> str:
        """The text to put before a word that is not a text's first: a space, or nothing.

        Byte-level BPE has other pieces for ` word` than for `word` unless it adds the space itself.
        """
        word = self.encode('a')
        if self.encode('a a') == word + word:
            return ''
        return ' '

    def with_special_tokens(self) -> str:
        """The content of a tokenizer.json that lists the special tokens as added ones.

        [MASK] takes in the space before it, as in RoBERTa.
        """
        from tokenizers import AddedToken as LibraryToken

        library = Library(self._library.to_str())
        for name in self.names_of_special_tokens.values():
            takes_space = name == self.vocab.tokens[self.vocab.mask_id]
            library.add_special_tokens([LibraryToken(name, lstrip=takes_space, special=True)])
        return str(library.to_str())

    def with_words(self, words: Sequence[str]) -> str:
        """The content of a tokenizer.json that has these words as tokens, with the next ids.

        A word is found where no letter or digit touches it, and takes in the space before it.
        """
        from tokenizers import AddedToken as LibraryToken

        for word in words:
            self._growth.check(word)
        library = Library(self._library.to_str())
        library.add_tokens([LibraryToken(word, single_word=True, lstrip=True) for word in words])
        return str(library.to_str())

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the files."""
        parts = ['huggingface', self.content, *map(str, sorted(self.beside.items()))]
        if self._draws:  # a store of older versions has drawn ids
            parts.append('without draws')
        return digest(' '.join(parts).encode('utf-8', 'surrogatepass'))

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without those that begin and end a sequence."""
        ids: list[int] = self._encoding(text).ids
        return ids

    def _encoding(self, text: str) -> Any:
        """The library's encoding of a text.

        Raises:
          Unsplittable: it cannot split it, or would make far more of it than it is.
        """
        sound = _sound(text)
        try:
            self._growth.check(sound)
            return self._library.encode(sound, add_special_tokens=False)
        except LibraryError as error:
            raise Unsplittable(f'{self._source}: tokenizers cannot split {text!r:.60} ({error}): '
                               'leave the text out', [0]) from None

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, in parallel.

        Raises:
          Unsplittable: some cannot be split.
        """
        try:
            return self._encode_together(texts)
        except InputError:
            return self._encode_apart(texts)

    def _encode_together(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, unless one of them cannot be split."""
        sound = [_sound(text) for text in texts]
        for text in sound:
            self._growth.check(text)
        encodings = self._library.encode_batch_fast(sound, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def _encode_apart(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode_batch` of texts of which some cannot be split, which are found in groups."""
        ids: list[list[int]] = []
        failed: list[int] = []
        reasons: list[str] = []
        for begin in range(0, len(texts), _GROUP):
            group = texts[begin : begin + _GROUP]
            if len(group) < len(texts):
                with contextlib.suppress(InputError):
                    ids += self._encode_together(group)
                    continue
            for place, text in enumerate(group, begin):
                try:
                    ids.append(self.encode(text))
                except InputError as error:
                    failed.append(place)
                    reasons.append(str(error))
        if failed:
            raise Unsplittable(f'{len(failed):,} of {len(texts):,} texts: {reasons[0]}', failed)
        return ids

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text, as in the text that joins the words with spaces."""
        return self.encode_batch(self.joinable(words))

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """`encode` of many texts, one after the other."""
        return joined(self.encode_batch(texts))

    def joinable(self, parts: Sequence[str]) -> list[str]:
        """The words or sentences of a text, each so that its ids are those that it has there.

        All but the first get the space before them, if that changes their pieces.
        """
        if not self._before_word:
            return list(parts)
        first = list(parts[:1])
        return first + [self._before_word + part if part else part for part in parts[1:]]

    def encode_with_places(self, text: str) -> Encoding:
        """The pieces of a text, and the characters that each stands for.

        The pieces of one character that is cut into bytes all have its place. A piece of nothing
        but a mark or white space has an empty one, where the next begins.
        """
        split = self.split(text)
        return Encoding(split.ids, split.places)

    def split(self, text: str) -> Split:
        """The pieces of a text, each with the text that the pre-tokenizer gave it."""
        encoding = self._encoding(text)
        places: list[Place] = []
        for piece_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            place = _without_space(text, begin, end)
            if not self.shown(piece_id):  # the library gives a mark the next character's place
                place = place[0], place[0]
            places.append(place)
        return Split(encoding.ids, places, encoding.word_ids, encoding.offsets)

    def shown(self, piece_id: int) -> str:
        """The characters of a piece, without its marks; U+FFFD for a part of a character."""
        token = self.vocab.tokens[piece_id]
        if piece_id in self._added_ids:
            return token
        return self._marks.shown(token)


def roberta_tokenizer(vocab: Mapping[str, int], merges: Sequence[str], source: str) -> str:
    """The tokenizer.json of RoBERTa's older files, byte-level BPE in vocab.json and merges.txt.

    Args:
      vocab: the pieces and their ids.
      merges: lines of merges.txt: two pieces, the most important merge first; and a line of its
        version.
      source: the folder, for messages.

    Raises:
      InputError: a merge has another form, or a special token of RoBERTa's is missing.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    pairs = [line.split(' ') for line in merges if line and not line.startswith('#version')]
    special = ('<s>', '<pad>', '</s>', '<unk>', '<mask>')
    missing = [token for token in special if token not in vocab]
    if missing:
        raise InputError(f'{source}: vocab.json lacks {missing[0]}, so it is not of RoBERTa: put '
                         'the tokenizer.json of the model there')
    try:
        with library_errors():
            model = models.BPE(vocab=dict(vocab), merges=[(first, last) for first, last in pairs])
    except LibraryError as error:
        raise InputError(f'{source}: vocab.json and merges.txt are not of one tokenizer '
                         f'({error}): download them again') from None
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.RobertaProcessing(
        ('</s>', vocab['</s>']), ('<s>', vocab['<s>']), add_prefix_space=False)
    mask = tokenizers.AddedToken('<mask>', lstrip=True, special=True)
    library.add_special_tokens([*special[:-1], mask])
    return str(library.to_str())


def _parts_of(content: str, source: str) -> dict[str, Any]:
    """The parts of a tokenizer.json.

    Raises:
      InputError: it is not a JSON object with a model.
    """
    try:
        parts = json.loads(content)
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, dict) or not isinstance(parts.get('model'), dict):
        raise InputError(f'{source} is no tokenizer file: download it again')
    return parts


def _read_library(content: str, source: str) -> Library:
    """The library's tokenizer, which neither cuts nor pads.

    Raises:
      InputError: the package is not installed, or cannot read the file.
    """
    with needing(source):
        import tokenizers
    try:
        library = Library(content)
    except LibraryError as error:
        raise InputError(f'{source} is no tokenizer file that tokenizers {tokenizers.__version__} '
                         f'reads ({error}): download it again, or update the package'
                         ) from None
    library.no_truncation()
    library.no_padding()
    return library


def _take_draws(parts: dict[str, Any]) -> list[str]:
    """Takes what draws pieces at random out of the parts of a tokenizer.json.

    Returns:
      The settings, as NAME=VALUE.
    """
    found = []
    for name in _DRAWS:
        value = parts['model'].get(name)
        if value:
            found.append(f'model.{name}={value!r:.60}')
            parts['model'][name] = None
    return found


def _adds_prefix_space(parts: Mapping[str, Any]) -> bool:
    """Whether byte-level BPE puts a space before each text."""
    steps = steps_of(parts.get('pre_tokenizer'))
    return any(step.get('type') == 'ByteLevel' and step['add_prefix_space'] for step in steps)


def _sound(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which the library refuses."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return ''.join('\ufffd' if ord(char) in _SURROGATES else char for char in text)
    return text


def _without_space(text: str, begin: int, end: int) -> Place:
    """A place without white space at its ends."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end


def _fields_of(beside: Mapping[str, str], source: str) -> dict[str, Any]:
    """The fields of the files beside a tokenizer.json.

    Raises:
      InputError: a file is not a JSON object.
    """
    fields: dict[str, Any] = {}
    for name in ('special_tokens_map.json', 'tokenizer_config.json'):
        if name not in beside:
            continue
        try:
            fields |= json.loads(beside[name])
        except (TypeError, ValueError):
            raise InputError(f'{name} beside {source} is no JSON object: download it again'
                             ) from None
    return fields


def _names_of_roles(fields: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens' names in the files beside a tokenizer.json, by role."""
    names = {}
    for role, (keys, _) in _ROLES.items():
        values = [_content(fields.get(key)) for key in keys]
        found = [value for value in values if value]
        if found:
            names[role] = found[0]
    return names


def _content(entry: Any) -> str:
    """The token of an entry, which may have flags; '' for none."""
    return _sound(token_in(entry))


def _ids_of_roles(
    index: Mapping[str, int], names: Mapping[str, str], ends: tuple[str, str],
    parts: Mapping[str, Any], source: str,
) -> dict[str, int]:
    """The ids of the special tokens by role.

    [CLS] and [SEP] are what the post-processor adds, else what the files beside it name, else the
    first known name in the vocabulary; the others are what the files beside it name, and so on.

    Raises:
      InputError: one but [UNK] is missing.
    """
    first_choice = dict(zip(('cls', 'sep'), ends, strict=True))
    ids: dict[str, int] = {}
    for role, (keys, known) in _ROLES.items():
        candidates = [first_choice.get(role, ''), names.get(role, '')]
        if role == 'unk':
            candidates.append(_content(parts['model'].get('unk_token')))
        for name in (*candidates, *known):
            if name in index:
                ids[role] = index[name]
                break
        if role not in ids and role != 'unk':
            raise InputError(
                f'{source} has no token for [{role.upper()}] among {len(index):,}: name it as '
                f'{keys[0]!r} in a tokenizer_config.json beside it')
    return ids


def _ids_by_role(vocab: Vocab) -> dict[str, int]:
    """The ids of the special tokens that there are."""
    ids = {'cls': vocab.cls_id, 'sep': vocab.sep_id, 'pad': vocab.pad_id, 'mask': vocab.mask_id}
    if vocab.unk_id is not None:
        ids['unk'] = vocab.unk_id
    return ids


@dataclasses.dataclass(frozen=True)
class _Marks:
    """How the pieces of a tokenizer show where words begin.

    Attributes:
      start: what the pieces that begin a word begin with; '': nothing.
      continuation: what the pieces that continue a word begin with; '': nothing.
      is_byte_level: whether characters stand for bytes.
    """

    start: str = ''
    continuation: str = ''
    is_byte_level: bool = False

    def begins_word(self, token: str) -> bool:
        """Whether a piece begins a word; so do all where no mark tells."""
        if self.is_byte_level:
            return _bytes_of(token)[:1].isspace()
        if self.start:
            return token.startswith(self.start)
        if self.continuation:
            return not token.startswith(self.continuation) or token == self.continuation
        return True

    def shown(self, token: str) -> str:
        """A piece as it looks, without its mark."""
        if self.is_byte_level:
            return _bytes_of(token).decode('utf-8', 'replace').strip()
        if self.start:
            return token.replace(self.start, ' ').strip()
        return token.removeprefix(self.continuation)


def _marks_of(parts: Mapping[str, Any]) -> _Marks:
    """The marks of a tokenizer.json."""
    steps = []
    for stage in ('normalizer', 'pre_tokenizer', 'decoder'):
        steps += steps_of(parts.get(stage))
    types = [step.get('type') for step in steps]
    if 'ByteLevel' in types:
        return _Marks(is_byte_level=True)
    for step in steps:
        if step.get('type') == 'Metaspace':
            return _Marks(start=step.get('replacement', WORD_START))
        if step.get('type') == 'Replace' and step.get('content') == WORD_START:
            return _Marks(start=WORD_START)
    return _Marks(continuation=parts['model'].get('continuing_subword_prefix') or '')


@functools.cache
def _byte_of_char() -> Mapping[str, int]:
    """The byte that each character of byte-level BPE stands for.

    Printable characters of Latin-1 stand for themselves, those from U+0100 on for the other bytes
    in order (GPT-2's `bytes_to_unicode`).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    by_char = {chr(byte): byte for byte in printable}
    for i, byte in enumerate(others):
        by_char[chr(0x100 + i)] = byte
    return by_char


def _bytes_of(token: str) -> bytes:
    """The bytes of a byte-level piece; a character that stands for none is itself."""
    table = _byte_of_char()
    found = bytearray()
    for char in token:
        if char in table:
            found.append(table[char])
        else:
            found += char.encode('utf-8', 'replace')
    return bytes(found)
