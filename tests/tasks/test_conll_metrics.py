"""Entity scores against seqeval, and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.tagging import conll_scores, to_iob2, write_conll

ANY_TAG = st.sampled_from(['O', 'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC', 'I-A-B'])


def flat(sentences):
    """Tags of all sentences in one list, and the offsets of the sentences."""
    offsets = np.cumsum([0] + [len(sentence) for sentence in sentences])
    return [tag for sentence in sentences for tag in sentence], offsets


def cut(tags, offsets):
    return [list(tags[a:b]) for a, b in zip(offsets[:-1], offsets[1:], strict=True)]


@st.composite
def sentence_pairs(draw):
    """Gold and predicted tags of a few sentences; nothing says that they are valid."""
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    gold = [draw(st.lists(ANY_TAG, min_size=n, max_size=n)) for n in lengths]
    # Predictions that are often right.
    predicted = [
        [draw(st.one_of(st.just(tag), ANY_TAG)) for tag in sentence] for sentence in gold
    ]
    return gold, predicted


@pytest.mark.filterwarnings('ignore::UserWarning')
@settings(deadline=None)
@given(sentence_pairs())
def test_scores_are_those_of_seqeval_whatever_the_tags(pair):
    seqeval = pytest.importorskip('seqeval.metrics', reason='seqeval is not installed')
    gold, predicted = pair
    (gold_tags, offsets), (predicted_tags, _) = flat(gold), flat(predicted)
    ours = conll_scores(predicted_tags, gold_tags, offsets)
    theirs = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0) \
        if any(tag != 'O' for tag in gold_tags + predicted_tags) else {}
    types = {name for name in theirs if not name.endswith(' avg')}
    assert {name.partition('/')[0] for name in ours if '/' in name} == types
    for name in types | ({'micro avg'} & set(theirs)):
        prefix = '' if name == 'micro avg' else f'{name}/'
        for ours_key, theirs_key in (
            ('precision', 'precision'), ('recall', 'recall'), ('f1', 'f1-score')
        ):
            assert ours[prefix + ours_key] == pytest.approx(theirs[name][theirs_key], abs=1e-12)
    if gold_tags:
        assert ours['accuracy'] == pytest.approx(seqeval.accuracy_score(gold, predicted))
    if not types:
        assert ours['f1'] == ours['precision'] == ours['recall'] == 0.0


@settings(deadline=None)
@given(sentence_pairs())
def test_iob2_has_the_same_entities_each_with_a_beginning(pair):
    tags, offsets = flat(pair[0])
    converted = to_iob2(tags, offsets)
    assert to_iob2(converted, offsets) == converted
    for before, after in zip(tags, converted, strict=True):
        assert before[1:] == after[1:] and (before == after or (before[0], after[0]) == ('I', 'B'))
    for sentence in cut(converted, offsets):
        for previous, tag in zip(['O', *sentence], sentence, strict=False):
            assert tag[0] != 'I' or previous[1:] == tag[1:]
    scores = conll_scores(converted, tags, offsets)
    assert scores['f1'] == (1.0 if set(tags) - {'O'} else 0.0)


@pytest.mark.parametrize('tags, expected', [
    # IOB1: B- only between neighbours of one type.
    ('I-PER I-PER B-PER O I-LOC', 'B-PER I-PER B-PER O B-LOC'),
    ('I-PER I-LOC I-LOC', 'B-PER B-LOC I-LOC'),
    ('B-PER I-PER O I-PER', 'B-PER I-PER O B-PER'),
    ('B-PER I-LOC', 'B-PER B-LOC'),
    ('I-PER | I-PER', 'B-PER | B-PER'),
    ('O | | I-PER I-PER', 'O | | B-PER I-PER'),
    ('', ''),
])
def test_tags_in_iob2(tags, expected):
    split = [part.split() for part in tags.split('|')]
    assert cut(to_iob2(*flat(split)), flat(split)[1]) == [
        part.split() for part in expected.split('|')]


@pytest.mark.parametrize('gold, predicted, correct, found, wanted', [
    ('B-PER I-PER O', 'B-PER I-PER O', 1, 1, 1),
    ('B-PER I-PER O', 'I-PER I-PER O', 1, 1, 1),  # the beginning may be marked with I-
    ('B-PER I-PER O', 'B-PER O O', 0, 1, 1),  # too short
    ('B-PER I-PER O', 'B-PER I-PER I-PER', 0, 1, 1),  # too long
    ('B-PER I-PER O', 'B-LOC I-LOC O', 0, 1, 1),  # of another type
    ('B-PER I-PER O', 'B-PER I-LOC O', 0, 2, 1),  # another type begins another entity
    ('B-PER B-PER O', 'B-PER I-PER O', 0, 1, 2),
    ('B-PER O B-PER', 'B-PER O O', 1, 1, 2),
    ('O O O', 'O B-PER O', 0, 1, 0),
    ('B-PER | I-PER', 'B-PER | B-PER', 2, 2, 2),  # entities end with their sentence
    ('O O', 'O O', 0, 0, 0),
])
def test_scores_by_hand(gold, predicted, correct, found, wanted):
    gold_tags, offsets = flat([part.split() for part in gold.split('|')])
    predicted_tags, _ = flat([part.split() for part in predicted.split('|')])
    scores = conll_scores(predicted_tags, gold_tags, offsets)
    assert scores['precision'] == (correct / found if found else 0)
    assert scores['recall'] == (correct / wanted if wanted else 0)
    assert scores['f1'] == (2 * correct / (found + wanted) if found + wanted else 0)


def test_scores_of_each_type_and_of_words():
    scores = conll_scores(
        ['B-PER', 'O', 'B-LOC', 'I-LOC', 'B-PER'], ['B-PER', 'O', 'B-LOC', 'O', 'B-LOC'],
        np.array([0, 2, 5]))
    assert scores == {
        'precision': 1 / 3, 'recall': 1 / 3, 'f1': 1 / 3, 'accuracy': 3 / 5,
        'LOC/precision': 0.0, 'LOC/recall': 0.0, 'LOC/f1': 0.0,
        'PER/precision': 0.5, 'PER/recall': 1.0, 'PER/f1': 2 / 3,
    }


@pytest.mark.parametrize('tag', ['S-PER', 'PER', 'B', 'I-', 'o', ''])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(InputError, match=f"'{tag}' is not a tag"):
        conll_scores([tag], ['O'], np.array([0, 1]))
    with pytest.raises(InputError, match=f"'{tag}' is not a tag"):
        to_iob2(['O', tag], np.array([0, 2]))


def test_predictions_are_written_as_conlleval_reads_them(tmp_path):
    path = tmp_path / 'predictions.txt'
    write_conll(
        path, ['Ünal', 'said', 'EU'], ['B-PER', 'O', 'B-ORG'], ['B-PER', 'O', 'I-LOC'],
        np.array([0, 2, 3]))
    assert path.read_bytes().decode() == 'Ünal B-PER B-PER\nsaid O O\n\nEU B-ORG I-LOC\n\n'
