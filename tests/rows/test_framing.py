"""Sequences of single texts and pairs against google-research/bert's rule and the library's."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import processors

from bert_jax.config.choices import GOOGLE, LONGEST_FIRST, TEMPLATE, ZEROS
from bert_jax.rows.sequences import joined, kept_lengths, make_sequences
from bert_jax.text.huggingface import HuggingFaceTokenizer
from tests import tokenizers_of_kinds as kinds
from tests.refusals import refused

LENGTHS = range(1, 14)
PAIRS = [(a, b) for a in LENGTHS for b in LENGTHS]
TEXTS = ['the cats sleep', 'a dog', 'walking', 'the dog and the cat were walking there']


def google(a, b, budget):
    """`_truncate_seq_pair`: a token at a time from the longer one, from B if they are equal."""
    while a + b > budget:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def rows(columns):
    return list(map(tuple, np.stack(columns, axis=1).tolist()))


@pytest.mark.parametrize('budget', range(2, 30))
def test_googles_rule(budget):
    a_n, b_n = np.array(PAIRS).T
    found = rows(kept_lengths(a_n, b_n, budget, GOOGLE))
    assert found == [google(a, b, budget) for a, b in PAIRS]


LIBRARY = kinds.accented_wordpiece()
TEMPLATES = [
    ('[CLS] $A [SEP]', '[CLS] $A [SEP] $B:1 [SEP]:1'),
    ('[CLS] $A [SEP]', '[CLS] $A [SEP] [SEP] $B:1 [SEP]:1'),
    ('[CLS] $A [SEP]', '[CLS] $A $B:1 [SEP]:1'),
    ('[CLS] $A [SEP]', '[CLS] $A [SEP] $B [SEP]'),
    ('$A [SEP] [CLS]:1', '$A [SEP] $B:1 [SEP]:1 [CLS]:1'),
    ('[CLS] [SEP] $A', '[CLS] $B [SEP] $A:1'),
    ('$A', '$A $B'),
]


def processed(kind):
    """A library with another post-processor."""
    library = tokenizers.Tokenizer.from_str(LIBRARY.to_str())
    cls, sep = ('[CLS]', 2), ('[SEP]', 3)
    if kind == 'bert':
        library.post_processor = processors.BertProcessing(sep, cls)
    elif kind == 'roberta':
        library.post_processor = processors.RobertaProcessing(sep, cls)
    else:
        single, pair = kind
        library.post_processor = processors.TemplateProcessing(single, pair, [cls, sep])
    return library


def assert_as_library(ours, library, max_length):
    """Ids and types of all texts and pairs."""
    encoded = [ours.encode(text) for text in TEXTS]
    places = [(i, j) for i in range(len(TEXTS)) for j in range(len(TEXTS))]
    a = joined([encoded[i] for i, _ in places])
    b = joined([encoded[j] for _, j in places])
    for second in (None, b):
        made = make_sequences(a, second, max_length=max_length, frame=ours.vocab.frame)
        for number, (i, j) in enumerate(places):
            begin, end = made.offsets[number:number + 2]
            theirs = library.encode(TEXTS[i], None if second is None else TEXTS[j])
            assert made.ids[begin:end].tolist() == theirs.ids
            assert made.types[begin:end].tolist() == theirs.type_ids


@pytest.mark.parametrize('kind', ['bert', 'roberta', *TEMPLATES])
@pytest.mark.parametrize('side', ['right', 'left'])
def test_every_template_is_followed(kind, side):
    """Also where texts are cut, at either end; and a Sequence of post-processors is one."""
    library = processed(kind)
    parts = json.loads(library.to_str())
    parts['post_processor'] = {'type': 'Sequence', 'processors': [
        {'type': 'ByteLevel', 'add_prefix_space': True, 'trim_offsets': False, 'use_regex': True},
        parts['post_processor']]}
    beside = {'tokenizer_config.json': json.dumps({'truncation_side': side})}
    ours = HuggingFaceTokenizer(json.dumps(parts), beside)
    for max_length in (512, 7, 8, 9, 10):
        library.enable_truncation(max_length, strategy='longest_first', direction=side)
        assert_as_library(ours, library, max_length)


@pytest.mark.parametrize('strategy', ['only_first', 'only_second'])
@pytest.mark.parametrize('budget', [5, 9, 14])
def test_one_of_the_two_is_cut(strategy, budget):
    """As in the library, which refuses a pair of which nothing would be left."""
    library = processed(TEMPLATES[-1])
    library.enable_truncation(budget, strategy=strategy)
    for a, b in PAIRS:
        def kept(a=a, b=b):
            found = kept_lengths(np.array([a]), np.array([b]), budget, strategy)
            return tuple(int(x) for x, in found)

        try:
            theirs = library.encode('a ' * a, 'a ' * b).sequence_ids
        except Exception:  # of the class Exception itself
            with refused(f"truncation='{strategy}'", 'longest_first'):
                kept()
        else:
            assert kept() == (theirs.count(0), theirs.count(1))


def test_what_a_model_gets():
    vocab = HuggingFaceTokenizer(processed(TEMPLATES[1]).to_str()).vocab
    frame = vocab.frame_for(LONGEST_FIRST, TEMPLATE)
    assert frame == vocab.frame and frame.num_types == 2
    assert vocab.frame_for(GOOGLE, ZEROS).num_types == 1
    assert frame.num_special(pair=True) == 4 and frame.num_special(pair=False) == 2


@pytest.mark.parametrize('pair', ['[CLS] $A $A $B', '[CLS] $A [SEP] $A $B', '$B $A $B'])
def test_a_template_that_repeats_a_text_is_refused(pair):
    with refused('it: its post_processor', 'repeats one'):
        HuggingFaceTokenizer(processed(('$A', pair)).to_str(), source='it')


def test_a_text_without_tokens_and_special_ones_is_refused():
    vocab = HuggingFaceTokenizer(processed(TEMPLATES[-1]).to_str()).vocab
    with refused('a text has no tokens (1 of 2)'):
        make_sequences(joined([[5], []]), None, max_length=9, frame=vocab.frame)
    with refused('no room for 2 special tokens'):
        make_sequences(joined([[5]]), None, max_length=1, frame=vocab.segments)
