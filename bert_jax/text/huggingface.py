"""Any tokenizer of Hugging Face's `tokenizers`, from its tokenizer.json.

The library splits the text: byte-level BPE (RoBERTa, GPT-2, ModernBERT), Unigram (XLM-R,
CamemBERT), WordPiece with other normalizers. So ids are those of transformers, special tokens in a
text included. What the file does not say, the files beside it do, as in transformers.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError, first_line, tell_once
from bert_jax.runtime.files import digest
from bert_jax.text.added import MOST_TOKENS, AddedToken
from bert_jax.text.tokenizer import Encoding, Place, Tokens, joined
from bert_jax.text.vocab import Vocab, unused_row

WORD_START = '\u2581'  # "lower one eighth block" stands for the space before a word
# By role: its names in tokenizer_config.json, and what tokenizers call the token.
_ROLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    'cls': (('cls_token', 'bos_token'), ('[CLS]', '<s>', '<cls>', '<|startoftext|>')),
    'sep': (('sep_token', 'eos_token'), ('[SEP]', '</s>', '<sep>', '<eos>', '<|endoftext|>')),
    'pad': (('pad_token',), ('[PAD]', '<pad>', '<|padding|>')),
    'mask': (('mask_token',), ('[MASK]', '<mask>', '<|mask|>')),
    'unk': (('unk_token',), ('[UNK]', '<unk>')),
}
_SURROGATES = range(0xD800, 0xE000)
_RARE_LETTER = '\U00013000'  # an Egyptian hieroglyph


class HuggingFaceTokenizer:
    """Splits texts as `tokenizers` does with a tokenizer.json.

    Special and added tokens are found in a text. The leading space of byte-level BPE is part of a
    piece, and no part of the piece's place.

    Attributes:
      vocab: the pieces and added tokens. A piece continues a word unless it has the mark of a space
        before it (byte-level BPE, SentencePiece's kinds), or if it has `##` (WordPiece).
      algorithm: 'bpe', 'unigram', 'wordpiece' or 'wordlevel'.
      content: of the tokenizer.json.
      beside: the files beside it that count, by name, with their content.
      adds_prefix_space: whether byte-level BPE puts a space before each text.
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
        fields = _fields_of(self.beside, source)
        parts = _parts_of(content, source)
        self._library = _read_library(content, source)
        if _set_prefix_space(parts, fields.get('add_prefix_space')):
            self._library = _read_library(json.dumps(parts), source)
        self.algorithm = str(parts['model'].get('type', 'WordPiece')).lower()
        self.adds_prefix_space = _adds_prefix_space(parts)
        names = _names_of_roles(fields)
        self._add(added_tokens, source)
        self._add_special(names)
        self._marks = _marks_of(parts)
        self.vocab = self._make_vocab(parts, names, source)
        self._check_unknown(source)
        self._before_word = self._find_before_word()

    def _add(self, tokens: Iterable[AddedToken], source: str) -> None:
        """Adds the tokens that the library does not have.

        Raises:
          InputError: one gets another id than the files say.
        """
        from tokenizers import AddedToken as LibraryToken

        for token in tokens:
            if self._library.token_to_id(token.content) is not None:
                continue
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
        """Makes tokens that are found in texts of those that the files beside it name."""
        added = self._library.get_added_tokens_decoder().values()
        known = {token.content for token in added}
        for name in names.values():
            if name not in known:
                self._library.add_special_tokens([name])
                known.add(name)

    def _make_vocab(
        self, parts: Mapping[str, Any], names: Mapping[str, str], source: str
    ) -> Vocab:
        """The vocabulary.

        Args:
          parts: of the tokenizer.json.
          names: of the special tokens by role, as far as the files beside it say.
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
            is_continuation[i] = i not in added and not self._marks.begins_word(tokens[i])
        is_continuation.flags.writeable = False
        template = _template_of(parts, source)
        ids = _ids_of_roles(index, names, template, parts, source)
        self._added_ids = frozenset(added)
        return Vocab(
            tuple(tokens),
            pad_id=ids['pad'],
            unk_id=ids.get('unk'),
            cls_id=ids['cls'],
            sep_id=ids['sep'],
            mask_id=ids['mask'],
            is_continuation=is_continuation,
            num_separators=template.num_separators)

    def _check_unknown(self, source: str) -> None:
        """Raises InputError if the library has nothing to put for a character that it lacks."""
        try:
            self._library.encode(_RARE_LETTER, add_special_tokens=False)
        except Exception as error:  # of the class Exception itself
            raise InputError(f'{source} has no token for what is not in its vocabulary '
                             f'({first_line(error)}): name one as unk_token (unk_id) of its model'
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
        """What a word that is not a text's first needs before it: a space, or nothing.

        Byte-level BPE tells the pieces of ` word` and `word` apart unless it adds the space itself.
        """
        word = self.encode('a')
        if self.encode('a a') == word + word:
            return ''
        return ' '

    def with_words(self, words: Sequence[str]) -> str:
        """The content of a tokenizer.json that has these words as tokens, with the next ids.

        A word is found where no letter or digit touches it, and takes in the space before it.
        """
        import tokenizers

        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.add_tokens([
            tokenizers.AddedToken(word, single_word=True, lstrip=True) for word in words])
        return str(library.to_str())

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the files."""
        parts = ['huggingface', self.content, *map(str, sorted(self.beside.items()))]
        return digest(' '.join(parts).encode('utf-8', 'surrogatepass'))

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without those that begin and end a sequence."""
        ids: list[int] = self._library.encode(_sound(text), add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, in parallel."""
        sound = [_sound(text) for text in texts]
        encodings = self._library.encode_batch_fast(sound, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

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
        encoding = self._library.encode(_sound(text), add_special_tokens=False)
        places: list[Place] = []
        for piece_id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
            place = _without_space(text, begin, end)
            if not self.shown(piece_id):  # the library gives a mark the next character's place
                place = place[0], place[0]
            places.append(place)
        return Encoding(encoding.ids, places)

    def shown(self, piece_id: int) -> str:
        """What one sees of a piece: its characters, without the marks; U+FFFD for parts of some."""
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
        model = models.BPE(vocab=dict(vocab), merges=[(first, last) for first, last in pairs])
    except Exception as error:  # of the class Exception itself
        raise InputError(f'{source}: vocab.json and merges.txt are not of one tokenizer '
                         f'({first_line(error)}): download them again') from None
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


def _read_library(content: str, source: str) -> Any:
    """The library's tokenizer, which neither cuts nor pads.

    Raises:
      InputError: the package is not installed, or cannot read the file.
    """
    try:
        import tokenizers
    except ImportError:
        raise InputError(f'{source} needs the package `tokenizers`: pip install tokenizers'
                         ) from None
    try:
        library = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # of the class Exception itself
        raise InputError(f'{source} is no tokenizer file that tokenizers {tokenizers.__version__} '
                         f'reads ({first_line(error)}): download it again, or update the package'
                         ) from None
    library.no_truncation()
    library.no_padding()
    return library


def _set_prefix_space(parts: dict[str, Any], adds: Any) -> bool:
    """Puts `add_prefix_space` of a tokenizer_config.json into the parts of a tokenizer.json.

    Returns:
      Whether that changes them.
    """
    changes = False
    if isinstance(adds, bool):
        for step in _steps(parts.get('pre_tokenizer')):
            if step.get('type') == 'ByteLevel' and step['add_prefix_space'] != adds:
                step['add_prefix_space'] = adds
                changes = True
    return changes


def _adds_prefix_space(parts: Mapping[str, Any]) -> bool:
    """Whether byte-level BPE puts a space before each text."""
    steps = _steps(parts.get('pre_tokenizer'))
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
    """What the files beside a tokenizer.json call the special tokens, by role."""
    names = {}
    for role, (keys, _) in _ROLES.items():
        values = [_content(fields.get(key)) for key in keys]
        found = [value for value in values if value]
        if found:
            names[role] = found[0]
    return names


def _content(entry: Any) -> str:
    """The token of an entry, which may have flags; '' for none."""
    if isinstance(entry, Mapping):
        entry = entry.get('content')
    return _sound(entry) if isinstance(entry, str) else ''


@dataclasses.dataclass(frozen=True)
class _Template:
    """How a post-processor frames texts; '' of a token that it does not add."""

    cls: str = ''
    sep: str = ''
    num_separators: int = 1


def _template_of(parts: Mapping[str, Any], source: str) -> _Template:
    """What the post-processor of a tokenizer.json says; one that is not BERT's gives a note."""
    processor = _framing_part(parts.get('post_processor'))
    kind = processor.get('type')
    if kind in ('BertProcessing', 'RobertaProcessing'):
        num_separators = 2 if kind == 'RobertaProcessing' else 1
        return _Template(processor['cls'][0], processor['sep'][0], num_separators)
    if kind != 'TemplateProcessing':
        return _Template()
    single = _template_tokens(processor.get('single'))
    pair = _template_tokens(processor.get('pair'))
    if len(single) == 3 and single[1] is None and single[0] and single[2]:
        cls, sep = single[0], single[2]
        for num_separators in (1, 2):
            if pair == [cls, None, *[sep] * num_separators, None, sep]:
                return _Template(cls, sep, num_separators)
    tell_once(f'note: {source} puts other special tokens around texts than [CLS] A [SEP] B [SEP]: '
              'they are framed so here')
    return _Template()


def _framing_part(processor: Any) -> Mapping[str, Any]:
    """The part of a post-processor that adds special tokens; an empty one without any."""
    if not isinstance(processor, Mapping):
        return {}
    if processor.get('type') == 'Sequence':
        for part in processor.get('processors', ()):
            if _framing_part(part):
                return _framing_part(part)
        return {}
    framing = ('BertProcessing', 'RobertaProcessing', 'TemplateProcessing')
    return processor if processor.get('type') in framing else {}


def _template_tokens(items: Any) -> list[str | None]:
    """The special tokens of a template; None for each text."""
    tokens: list[str | None] = []
    for item in items or ():
        special = item.get('SpecialToken')
        tokens.append(None if special is None else str(special['id']))
    return tokens


def _ids_of_roles(
    index: Mapping[str, int], names: Mapping[str, str], template: _Template,
    parts: Mapping[str, Any], source: str,
) -> dict[str, int]:
    """The ids of the special tokens by role.

    [CLS] and [SEP] are what the post-processor adds, else what the files beside it name, else the
    first known name in the vocabulary; the others are what the files beside it name, and so on.

    Raises:
      InputError: one but [UNK] is missing, or [MASK] is one of the others.
    """
    first_choice = {'cls': template.cls, 'sep': template.sep}
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
    for role in ('cls', 'sep', 'pad'):
        if ids['mask'] == ids[role]:
            raise InputError(
                f'{source} has one token, id {ids[role]}, for [MASK] and [{role.upper()}]: name '
                "another as 'mask_token' in a tokenizer_config.json beside it")
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
    stages = [parts.get('normalizer'), parts.get('pre_tokenizer'), parts.get('decoder')]
    steps = [step for stage in stages for step in _steps(stage)]
    types = [step.get('type') for step in steps]
    if 'ByteLevel' in types:
        return _Marks(is_byte_level=True)
    for step in steps:
        if step.get('type') == 'Metaspace':
            return _Marks(start=step.get('replacement', WORD_START))
        if step.get('type') == 'Replace' and step.get('content') == WORD_START:
            return _Marks(start=WORD_START)
    return _Marks(continuation=parts['model'].get('continuing_subword_prefix') or '')


def _steps(stage: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer, a pre-tokenizer or a decoder, which may be a sequence of some."""
    if not isinstance(stage, dict):
        return []
    for name in ('normalizers', 'pretokenizers', 'decoders'):
        if name in stage:
            return [step for part in stage[name] for step in _steps(part)]
    return [stage]


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
