"""The parts that classes of transformers make themselves, whatever a tokenizer.json says.

In transformers 5 a class of a model's own takes the vocabulary of the tokenizer.json and builds the
rest: RobertaTokenizer, XLMRobertaTokenizer, CamembertTokenizer, AlbertTokenizer, MPNetTokenizer and
BertTokenizer (`settings`). The general classes take the file as it is.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.config.choices import LONGEST_FIRST
from bert_jax.runtime.errors import tell_once
from bert_jax.text.frames import Frame, berts_frame
from bert_jax.text.growth import steps_of

_GENERAL = ('PreTrainedTokenizer', 'TokenizersBackend')
# Their algorithm, as a tokenizer.json calls it.
_BYTE_LEVEL = ('RobertaTokenizer', 'BartTokenizer', 'LongformerTokenizer')
_SENTENCE_PIECE = ('XLMRobertaTokenizer', 'CamembertTokenizer')
_ALBERT = 'AlbertTokenizer'
_MPNET = 'MPNetTokenizer'
_ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(_BYTE_LEVEL, 'BPE'),
    **dict.fromkeys((*_SENTENCE_PIECE, _ALBERT, 'XLNetTokenizer'), 'Unigram'),
    **dict.fromkeys(('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer',
                     'MobileBertTokenizer', _MPNET), 'WordPiece'),
}
# Others that make parts themselves, which are not made here.
_NOT_MADE = tuple(f'{name}Tokenizer' for name in (
    'Barthez', 'BigBird', 'Blenderbot', 'CLIP', 'CodeGen', 'CodeLlama', 'Cohere', 'Deberta',
    'DebertaV2', 'Funnel', 'GPT2', 'GPTNeoX', 'Gemma', 'Herbert', 'LayoutLMv2', 'LayoutLMv3',
    'LayoutXLM', 'Llama', 'Luke', 'MBart', 'MBart50', 'MLuke', 'MarkupLM', 'Nllb', 'OpenAIGPT',
    'Pegasus', 'Qwen2', 'Reformer', 'RemBert', 'SeamlessM4T', 'Splinter', 'T5', 'Udop', 'Whisper',
    'XGLM', 'XLNet'))
_MARK = '\u2581'
# Transformers 4 put it behind the other steps of a SentencePiece model. Words are the same without
# it, as they are split at spaces.
_FEWER_SPACES = {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}


def class_named(fields: Mapping[str, Any]) -> str:
    """The class that a tokenizer_config.json names; '' for none."""
    return str(fields.get('tokenizer_class') or '').removesuffix('Fast')


def makes_others_parts(fields: Mapping[str, Any]) -> bool:
    """Whether the class that a tokenizer_config.json names makes another tokenizer than BERT's."""
    kind = class_named(fields)
    if kind in (_MPNET, *_NOT_MADE):
        return True
    return _ALGORITHMS.get(kind, 'WordPiece') != 'WordPiece'


def algorithm_in(parts: Mapping[str, Any]) -> str:
    """The algorithm of a tokenizer.json, as it calls it."""
    return str(parts['model'].get('type', 'WordPiece'))


def follow_class(parts: dict[str, Any], fields: Mapping[str, Any], source: str) -> bool:
    """Puts into the parts of a tokenizer.json what the class beside it makes itself.

    What differs is noted.

    Args:
      parts: of the tokenizer.json, which are changed.
      fields: of the tokenizer_config.json.
      source: for messages.

    Returns:
      Whether something changed.
    """
    kind = class_named(fields)
    algorithm = algorithm_in(parts)
    wanted = _ALGORITHMS.get(kind, algorithm)
    if wanted != algorithm:
        tell_once(f'note: {source} is a tokenizer of {algorithm}, while tokenizer_class={kind!r} '
                  f'beside it is one of {wanted}: the tokenizer.json is followed')
        return False
    changed = changed_by_class(kind, parts, fields)
    parts |= changed
    if changed and kind:
        tell_once(f'note: {source}: tokenizer_class={kind!r} beside it makes another '
                  f"{', '.join(changed)}, which is taken, as in transformers 5")
    _tell_not_followed(kind, parts, fields, source)
    return bool(changed)


def changed_by_class(
    kind: str, parts: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The parts that a class makes itself, as far as they are not those of a tokenizer.json.

    Args:
      kind: the class; '' for none.
      parts: of the tokenizer.json.
      fields: of the tokenizer_config.json.
    """
    algorithm = algorithm_in(parts)
    made: dict[str, Any] = {}
    if _ALGORITHMS.get(kind, algorithm) != algorithm:
        pass  # it is not made for such a tokenizer.json
    elif kind in _BYTE_LEVEL:
        made = _byte_level(fields)
    elif kind in _SENTENCE_PIECE:
        made = _sentence_piece(parts, fields)
    elif kind == _ALBERT:
        made = _sentence_piece(parts, fields) | {'normalizer': _alberts_normalizer(parts, fields)}
    elif kind == _MPNET:
        made = _mpnets(fields)
    elif kind not in _GENERAL:
        made = _with_prefix_space(parts, fields)
    return {name: part for name, part in made.items() if _plain(parts.get(name)) != _plain(part)}


def _tell_not_followed(
    kind: str, parts: Mapping[str, Any], fields: Mapping[str, Any], source: str
) -> None:
    """Notes what stands beside a tokenizer.json and changes nothing here."""
    if kind in _NOT_MADE:
        tell_once(f'note: {source} is followed, and tokenizer_class={kind!r} beside it is not: in '
                  'transformers 5, that class may make other parts (PreTrainedTokenizerFast makes '
                  'none)')
    if kind in _GENERAL and _contradicts_space(parts, fields):
        tell_once(f"note: {source}: add_prefix_space={fields['add_prefix_space']} beside it is not "
                  f'applied, as in transformers 5 for tokenizer_class={kind!r}')
    for name in ('add_bos_token', 'add_eos_token'):
        if name in fields and kind not in _ALGORITHMS:
            tell_once(f'note: {source}: {name}={fields[name]!r:.60} beside it is not applied: the '
                      'post_processor says what stands around texts')


def frame_of_class(
    frame: Frame | None, algorithm: str, fields: Mapping[str, Any], index: Mapping[str, int],
    source: str,
) -> Frame | None:
    """The frame of a tokenizer, which some classes make themselves; one that differs is noted.

    Args:
      frame: that of the tokenizer.json, if it has one.
      algorithm: of the tokenizer.json, which is followed if that of its class is another.
      fields: of the tokenizer_config.json.
      index: the ids of tokens.
      source: for messages.
    """
    kind = class_named(fields)
    names = ('bos_token', 'eos_token')
    if kind not in _SENTENCE_PIECE:
        names = ('cls_token', 'sep_token')
    ends = [token_in(fields.get(name)) for name in names]
    cls_id, sep_id = (index.get(end or usual) for end, usual in zip(ends, ('<s>', '</s>')))
    makes_frame = kind in (*_BYTE_LEVEL, *_SENTENCE_PIECE, _MPNET)
    makes_frame = makes_frame and _ALGORITHMS[kind] == algorithm
    if not makes_frame or cls_id is None or sep_id is None:
        return frame
    robertas = berts_frame(cls_id, sep_id, 2).without_types()
    if frame is None:
        return dataclasses.replace(robertas, truncation=LONGEST_FIRST)
    made = dataclasses.replace(frame, single=robertas.single, pair=robertas.pair)
    if made != frame:
        tell_once(f'note: {source}: tokenizer_class={kind!r} beside it puts other special tokens '
                  'or types around texts, which are taken, as in transformers 5')
    return made


def token_in(entry: Any) -> str:
    """The token of an entry of a tokenizer_config.json, which may have flags; '' for none."""
    if isinstance(entry, Mapping):
        entry = entry.get('content')
    return entry if isinstance(entry, str) else ''


def _byte_level(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that RobertaTokenizer makes."""
    adds = fields.get('add_prefix_space') is True
    return {
        'normalizer': None,
        'pre_tokenizer': {
            'type': 'ByteLevel', 'add_prefix_space': adds, 'trim_offsets': True,
            'use_regex': True}}


def _sentence_piece(parts: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that XLMRobertaTokenizer makes; of the normalizer, it keeps a precompiled step."""
    steps = steps_of(parts.get('normalizer'))
    precompiled = [step for step in steps if step.get('type') == 'Precompiled']
    scheme = 'never' if fields.get('add_prefix_space') is False else 'always'
    metaspace = {
        'type': 'Metaspace', 'replacement': _MARK, 'prepend_scheme': scheme, 'split': True}
    return {
        'normalizer': precompiled[0] if precompiled else None,
        'pre_tokenizer': {
            'type': 'Sequence', 'pretokenizers': [{'type': 'WhitespaceSplit'}, metaspace]}}


def _alberts_normalizer(parts: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The normalizer that AlbertTokenizer makes of its fields, then a precompiled one."""
    quotes = [{'type': 'Replace', 'pattern': {'String': marks}, 'content': '"'}
              for marks in ('``', "''")]
    accents: list[dict[str, Any]] = []
    if not fields.get('keep_accents', False):
        accents = [{'type': 'NFKD'}, {'type': 'StripAccents'}]
    case = [{'type': 'Lowercase'}] if fields.get('do_lower_case', True) else []
    steps = steps_of(parts.get('normalizer'))
    precompiled = [step for step in steps if step.get('type') == 'Precompiled'][:1]
    return {'type': 'Sequence', 'normalizers': [*quotes, *accents, *case, *precompiled]}


def _mpnets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that MPNetTokenizer makes, which are those of BertTokenizer."""
    return {
        'normalizer': {
            'type': 'BertNormalizer', 'clean_text': True,
            'handle_chinese_chars': fields.get('tokenize_chinese_chars', True),
            'strip_accents': fields.get('strip_accents'),
            'lowercase': fields.get('do_lower_case', True)},
        'pre_tokenizer': {'type': 'BertPreTokenizer'}}


def _with_prefix_space(parts: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The pre-tokenizer with the `add_prefix_space` beside it, where no class is known."""
    adds = fields.get('add_prefix_space')
    if not _contradicts_space(parts, fields):
        return {}
    return {'pre_tokenizer': _with_space(parts.get('pre_tokenizer'), adds)}


def _with_space(stage: Any, adds: Any) -> Any:
    """A pre-tokenizer in which byte-level steps put a space before each text, or do not."""
    if not isinstance(stage, dict):
        return stage
    if 'pretokenizers' in stage:
        return {**stage, 'pretokenizers': [_with_space(x, adds) for x in stage['pretokenizers']]}
    if stage.get('type') == 'ByteLevel':
        return {**stage, 'add_prefix_space': adds}
    return stage


def _contradicts_space(parts: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    """Whether `add_prefix_space` beside a tokenizer.json is not what byte-level BPE has there."""
    adds = fields.get('add_prefix_space')
    if not isinstance(adds, bool):
        return False
    steps = steps_of(parts.get('pre_tokenizer'))
    return any(step.get('type') == 'ByteLevel' and step.get('add_prefix_space', adds) != adds
               for step in steps)


def _plain(stage: Any) -> list[dict[str, Any]]:
    """The steps of a part, without what concerns offsets, and older spellings as of today."""
    found: list[dict[str, Any]] = []
    for step in steps_of(stage):
        step = {name: value for name, value in step.items() if name != 'trim_offsets'}
        if step.get('type') == 'ByteLevel':
            step.setdefault('use_regex', True)
        if step == _FEWER_SPACES and found:
            continue
        if step.get('type') == 'Metaspace' and 'prepend_scheme' not in step:
            adds = step.get('add_prefix_space', True)
            step['prepend_scheme'] = 'always' if adds else 'never'
        if step.get('type') == 'Metaspace':
            step.pop('add_prefix_space', None)
            step.pop('str_rep', None)
            step.setdefault('split', True)
        found.append(step)
    return found
