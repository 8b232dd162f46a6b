"""Tokenizers of any tokenizer.json against the library that they are of."""

import functools
import json
import pickle
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import berts_frame
from bert_jax.text.huggingface import HuggingFaceTokenizer, roberta_tokenizer
from bert_jax.text.kinds import load_tokenizer
from tests import tokenizers_of_kinds as kinds
from tests.refusals import refused

BYTE_LEVEL = ('roberta', 'modernbert', 'split_by_regex')
SPECIAL = ('<mask>', '[MASK]', '<s>', '[SEP]', '    ')


@functools.cache
def both(kind):
    """(The library's tokenizer of a file, ours of the same file)."""
    content = kinds.KINDS[kind]().to_str()  # where scores are rounded
    return Tokenizer.from_str(content), HuggingFaceTokenizer(content)


def expected_ids(library, text):
    return library.encode(text, add_special_tokens=False).ids


def random_lines(number):
    """Lines of words, special tokens, odd white space and characters of all planes."""
    draw = random.Random(0)
    words = ' '.join(kinds.TEXTS).split()
    odd = ['\u00a0', '\u200d', '\t', '  ', '\u3000', 'e\u0301', '\ufeff', '\x00', *SPECIAL]
    for _ in range(number):
        parts = []
        for _ in range(draw.randrange(12)):
            any_char = chr(draw.choice((draw.randrange(0xD800), draw.randrange(0xE000, 0x110000))))
            latin = chr(draw.randrange(0x20, 0x250))
            parts.append(draw.choice((draw.choice(words), draw.choice(odd), latin, any_char)))
            parts.append(draw.choice(('', ' ')))
        yield ''.join(parts)


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_ids_are_the_librarys(kind, tokenized):
    library, ours = both(kind)
    texts = [example['text'] for example in tokenized] + list(random_lines(300))
    batch = ours.encode_batch(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert ids == ours.encode(text) == expected_ids(library, text), text


@pytest.mark.parametrize('kind', kinds.KINDS)
@settings(max_examples=30, deadline=None)
@given(text=st.text())
def test_any_text_has_ids_and_places(kind, text):
    library, ours = both(kind)
    encoding = ours.encode_with_places(text)
    assert encoding.ids == ours.encode(text) == expected_ids(library, text)
    for begin, end in encoding.places:
        assert 0 <= begin <= end <= len(text)
        assert text[begin:end] == text[begin:end].strip()


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_lone_surrogates_are_replaced(kind):
    _, ours = both(kind)
    assert ours.encode('a\ud800b \udfff') == ours.encode('a\ufffdb \ufffd')
    assert ours.encode_batch(['\ud800']) == [ours.encode('\ufffd')]
    assert ours.encode_with_places('\ud800 the').places[-1][1] == 5


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_words_have_the_ids_of_the_text_that_joins_them(kind, tokenized):
    _, ours = both(kind)
    for example in tokenized[:800]:
        words = example['text'].split()
        joined = sum(ours.encode_words(words), [])
        assert joined == ours.encode(' '.join(words)), words


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_pieces_in_their_places_make_the_text(kind):
    """Text that no normalizer changes: each piece shows what stands in its place."""
    _, ours = both(kind)
    text = "the cat  didn't walk, 12 sleepers talked."
    ids, places = ours.encode_with_places(text)
    for piece, (begin, end) in zip(ids, places, strict=True):
        if piece != ours.vocab.unk_id and ours.shown(piece).strip():
            assert ours.shown(piece) == text[begin:end]
    shown = ''.join(text[begin:end] for begin, end in places)
    assert shown == text.replace(' ', '')


@pytest.mark.parametrize('kind', kinds.KINDS)
def test_words_begin_where_the_text_has_space(kind):
    """A piece continues a word unless the text has a space before it, or a sign apart."""
    _, ours = both(kind)
    text = 'the cats sleeper walking'
    ids, places = ours.encode_with_places(text)
    continues = ours.vocab.is_continuation[ids].tolist()
    for number, (begin, _) in enumerate(places):
        if begin:
            assert continues[number] == (text[begin - 1] != ' '), (kind, number)
    assert len(ids) > 4


@pytest.mark.parametrize(('kind', 'tokens', 'num_separators'), [
    ('roberta', ('<pad>', '<unk>', '<s>', '</s>', '<mask>'), 2),
    ('modernbert', ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'), 1),
    ('llama3', ('[PAD]', '[UNK]', '<|begin_of_text|>', '<|end_of_text|>', '[MASK]'), 1),
    ('xlmr', ('<pad>', '<unk>', '<s>', '</s>', '<mask>'), 2),
    ('accented_wordpiece', ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'), 1),
])
def test_special_tokens_and_the_frame(kind, tokens, num_separators):
    library, ours = both(kind)
    vocab = ours.vocab
    ids = (vocab.pad_id, vocab.unk_id, vocab.cls_id, vocab.sep_id, vocab.mask_id)
    assert ids == tuple(map(library.token_to_id, tokens))
    frame = vocab.frame
    assert frame.num_special(pair=True) == 2 + num_separators
    a, b = expected_ids(library, 'the cat'), expected_ids(library, 'a dog')
    separators = [vocab.sep_id] * num_separators
    assert library.encode('the cat').ids == [vocab.cls_id, *a, vocab.sep_id]
    assert library.encode('the cat', 'a dog').ids == [
        vocab.cls_id, *a, *separators, *b, vocab.sep_id]
    assert frame.num_separators == vocab.num_separators == num_separators
    assert len(vocab) == library.get_vocab_size(with_added_tokens=True)
    assert vocab.index == library.get_vocab(with_added_tokens=True)


def test_characters_cut_into_bytes_have_one_place():
    _, ours = both('roberta')
    ids, places = ours.encode_with_places('a \U0001F680')
    assert len(ids) > 2 and set(places[1:]) <= {(2, 2), (2, 3)}
    assert '\ufffd' in ours.shown(ids[-1])


def test_a_mask_takes_in_its_space():
    _, ours = both('roberta')
    mask = ours.vocab.mask_id
    ids, places = ours.encode_with_places('the <mask> sat')
    assert places[ids.index(mask)] == (4, 10) and ours.shown(mask) == '<mask>'
    assert [ours.shown(i) for i in ids].count('') == 0
    assert not ours.vocab.is_continuation[mask]


def test_the_files_beside_it_name_special_tokens(tmp_path):
    """Names that nobody knows, one of them with flags, one not yet in the file."""
    library = kinds.accented_wordpiece()
    parts = json.loads(library.to_str().replace('[CLS]', '<<begin>>').replace('[PAD]', '<<none>>'))
    parts['post_processor'] = None
    path = tmp_path / 'tokenizer.json'
    path.write_text(json.dumps(parts))
    with pytest.raises(InputError, match=r"no token for \[CLS\].*'cls_token'"):
        load_tokenizer(path, lowercase=True)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(
        {'cls_token': {'content': '<<begin>>', 'lstrip': False}, 'mask_token': '<<new>>'}))
    (tmp_path / 'special_tokens_map.json').write_text(json.dumps({'pad_token': '<<none>>'}))
    vocab = load_tokenizer(path, lowercase=True).vocab
    assert (vocab.pad_id, vocab.cls_id, vocab.mask_id) == (0, 2, library.get_vocab_size())
    assert vocab.tokens[-1] == '<<new>>'
    # Beside a file of another name nothing counts.
    other = path.rename(tmp_path / 'mine.json')
    with pytest.raises(InputError, match='mine.json has no token'):
        load_tokenizer(other, lowercase=True)


def test_added_tokens_of_the_files_beside_it(tmp_path):
    library = kinds.roberta()
    size = library.get_vocab_size()
    entry = {'content': 'catfish', 'single_word': True, 'normalized': True}
    path = kinds.write(tmp_path, library, added_tokens_decoder={str(size): entry})
    ours = load_tokenizer(path, lowercase=True)
    assert size in ours.encode('a catfish') and size not in ours.encode('a catfishes')
    path = kinds.write(tmp_path, library, added_tokens_decoder={str(size + 5): entry})
    with pytest.raises(InputError, match=f"'catfish' has the id {size + 5}"):
        load_tokenizer(path, lowercase=True)


def test_no_unknown_piece():
    """Byte-level BPE of GPT-2's has none: every text has pieces."""
    text = kinds.modernbert().to_str().replace('[UNK]', '[other]')
    ours = HuggingFaceTokenizer(text)
    assert ours.vocab.unk_id is None and ours.vocab.stand_in_id == ours.vocab.mask_id


def test_a_prefix_space_of_the_settings(tmp_path):
    path = kinds.write(tmp_path, kinds.roberta(), add_prefix_space=True)
    ours = load_tokenizer(path, lowercase=True)
    assert ours.encode('the') == both('roberta')[1].encode(' the')
    assert ours.joinable(['the', 'cat']) == ['the', 'cat'] and ours.adds_prefix_space
    assert ours.fingerprint != both('roberta')[1].fingerprint


def test_processes_get_the_same_tokenizer():
    """As those that build a store in parts do."""
    _, ours = both('modernbert')
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.encode_batch(kinds.TEXTS) == ours.encode_batch(kinds.TEXTS)
    assert copy.fingerprint == ours.fingerprint


def with_model(kind, **fields):
    """The tokenizer.json of a kind with other fields of its model."""
    parts = json.loads(kinds.KINDS[kind]().to_str())
    parts['model'] |= fields
    return json.dumps(parts)


@pytest.mark.parametrize(('content', 'says'), [
    ('{"model"', 'no tokenizer file'),
    ('[]', 'no tokenizer file'),
    ('{"model": {"type": "Diffusion"}}', 'no tokenizer file that tokenizers'),
    (kinds.xlmr().to_str().replace('<mask>', '<other>'), r"no token for \[MASK\].*'mask_token'"),
    (b'\xff', 'not UTF-8'),
    ('', 'is empty'),
    ('{"model": ' + '[' * 100_000, 'no tokenizer file'),
    (with_model('accented_wordpiece', vocab={'a': 10**9}), 'the id 1,000,000,000: ids are below'),
    (with_model('accented_wordpiece', vocab={}), 'has no token for'),
    (with_model('accented_wordpiece', unk_token='<none>'), 'not in its vocabulary .*unk_token'),
    (with_model('xlmr', unk_id=None), 'not in its vocabulary .*unk_token'),
])
def test_bad_files_are_refused(content, says, tmp_path):
    path = tmp_path / 'tokenizer.json'
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=says) as error:
        load_tokenizer(path, lowercase=True)
    assert str(path) in str(error.value) and '\n' not in str(error.value)


@pytest.mark.parametrize(('name', 'content', 'says'), [
    ('tokenizer_config.json', '{"mask_token": "<pad>"}', r'id 1, for \[MASK\] and \[PAD\]'),
    ('tokenizer_config.json', '{"extra_special_tokens": 5}', 'extra_special_tokens=5 is no list'),
    ('tokenizer_config.json', '{"extra_special_tokens": ["\\ud800"]}', 'the added token'),
    ('tokenizer_config.json', '[' * 100_000, 'cannot be read as JSON'),
    ('special_tokens_map.json', '[]', 'no JSON object'),
    ('added_tokens.json', '{"x": Infinity}', "the added token 'x'"),
    ('added_tokens.json', '{"x": 1000000000}', "the added token 'x'"),
])
def test_bad_files_beside_it_are_refused(name, content, says, tmp_path):
    path = kinds.write(tmp_path, kinds.roberta())
    (tmp_path / name).write_text(content)
    with refused(str(tmp_path), match=says):
        load_tokenizer(path, lowercase=True)


def test_robertas_older_files(tokenized):
    library = kinds.roberta()
    model = json.loads(library.to_str())['model']
    merges = ['#version: 0.2', *map(' '.join, model['merges']), '']
    vocab = model['vocab'] | {'<mask>': library.token_to_id('<mask>')}
    ours = HuggingFaceTokenizer(roberta_tokenizer(vocab, merges, 'folder'))
    for example in tokenized[:200]:
        text = example['text'] + ' <mask>'
        assert ours.encode(text) == expected_ids(library, text)
    assert ours.vocab.frame.pair == berts_frame(0, 2, 2).without_types().pair
    with pytest.raises(InputError, match='lacks <mask>'):
        roberta_tokenizer(model['vocab'], merges, 'folder')
    with pytest.raises(InputError, match='folder: vocab.json and merges.txt'):
        roberta_tokenizer(vocab, ['alone'], 'folder')


def test_ids_that_have_no_token_get_a_name():
    parts = json.loads(kinds.accented_wordpiece().to_str())
    last = max(parts['model']['vocab'], key=parts['model']['vocab'].get)
    number = parts['model']['vocab'].pop(last)
    parts['model']['vocab'][last] = number + 3
    vocab = HuggingFaceTokenizer(json.dumps(parts)).vocab
    assert re.fullmatch(r'\[unused row \d+\]', vocab.tokens[number])
    assert len(vocab) == number + 4 == len(vocab.is_continuation)
    assert vocab.is_continuation.dtype == np.bool_
