"""The tokens that a tokenizer of the library `tokenizers` puts around and between texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.config.choices import LONGEST_FIRST
from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import Frame, Special, Template, Text
from bert_jax.text.library import LibraryError

_MOST_TYPES = 128  # sequences have types in a byte
_FRAMING = ('BertProcessing', 'RobertaProcessing', 'TemplateProcessing')


def frame_of_library(
    library: Any, parts: Mapping[str, Any], side: Any, num_ids: int, source: str
) -> Frame | None:
    """The frame that the library's post-processor makes; None where there is none.

    It is read off what becomes of a text and of a pair, so whatever the post-processor is.

    Args:
      library: a tokenizer that neither cuts nor pads.
      parts: of its tokenizer.json.
      side: `truncation_side` of the files beside it; None: they do not say it.
      num_ids: of the vocabulary.
      source: for messages.

    Raises:
      InputError: a text is left out or repeated, a special token has no row in the vocabulary, or a
        type is too large.
    """
    if not _frames(parts.get('post_processor')):
        return None
    probes = _probes(library)
    if not probes:
        return None  # nothing can be split, which is refused elsewhere
    single, pair = _templates(library, probes, source)
    frame = Frame(single, pair, LONGEST_FIRST, cuts_start(parts, side))
    special = [part.id for part in (*single, *pair) if isinstance(part, Special)]
    if max(special, default=0) >= num_ids:
        raise InputError(f'{source}: its post_processor adds the id {max(special)}, which is of no '
                         f'token: there are {num_ids:,}; download it again')
    if frame.num_types > _MOST_TYPES:
        raise InputError(f'{source}: its post_processor gives tokens the type '
                         f'{frame.num_types - 1}: at most {_MOST_TYPES - 1} is possible')
    return frame


def _templates(
    library: Any, probes: Sequence[tuple[str, list[int]]], source: str
) -> tuple[Template, Template]:
    """The templates of one text and of two, from texts that have these ids.

    Raises:
      InputError: a text is left out or repeated.
    """
    found = []
    for probe, ids in probes:
        single = _template_in(library.encode(probe), len(ids), 1)
        pair = _template_in(library.encode(probe, probe), len(ids), 2)
        found.append((single, pair))
    single, pair = found[0]
    if single is None or pair is None or found[0] != found[-1]:
        raise InputError(f'{source}: its post_processor leaves out a text, or repeats one: texts '
                         'cannot be framed so here')
    return single, pair


def _probes(library: Any) -> list[tuple[str, list[int]]]:
    """Two texts with other ids each, which a repeated text shows in, with these ids."""
    added = library.get_added_tokens_decoder().values()
    found: list[tuple[str, list[int]]] = []
    for probe in ('a', 'b', *(token.content for token in added)):
        try:
            ids = library.encode(probe, add_special_tokens=False).ids
        except LibraryError:
            continue
        if ids and all(ids != other for _, other in found):
            found.append((probe, ids))
        if len(found) == 2:
            break
    return found


def _frames(processor: Any) -> bool:
    """Whether a post-processor says what stands around texts."""
    if not isinstance(processor, Mapping):
        return False
    if processor.get('type') == 'Sequence':
        return any(map(_frames, processor.get('processors') or ()))
    return processor.get('type') in _FRAMING


def _template_in(encoding: Any, num_tokens: int, num_texts: int) -> Template | None:
    """The template of an encoding of texts with so many tokens each; None: not each is there."""
    parts: list[Special | Text] = []
    counts = [0] * num_texts
    before = None
    for token, token_type, number in zip(
            encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if number is None:
            parts.append(Special(token, token_type))
        else:
            counts[number] += 1
            if number != before:
                parts.append(Text(number, token_type))
        before = number
    texts = [part.number for part in parts if isinstance(part, Text)]
    if sorted(texts) != list(range(num_texts)) or counts != [num_tokens] * num_texts:
        return None
    return tuple(parts)


def cuts_start(parts: Mapping[str, Any], side: Any) -> bool:
    """Whether texts that are too long lose their beginnings.

    As in transformers, `truncation_side` of the files beside a tokenizer.json counts, then the
    direction of its part `truncation`.
    """
    truncation = parts.get('truncation')
    if side is None and isinstance(truncation, Mapping):
        side = truncation.get('direction')
    return str(side).lower() == 'left'


def ends_of(frame: Frame | None, tokens: Sequence[str]) -> tuple[str, str]:
    """The special tokens right at the beginning and the end of a single text; '' where none is."""
    if frame is None:
        return '', ''
    first, *_ = frame.single
    *_, last = frame.single
    return _token_of(first, tokens), _token_of(last, tokens)


def _token_of(part: Special | Text, tokens: Sequence[str]) -> str:
    return tokens[part.id] if isinstance(part, Special) else ''
