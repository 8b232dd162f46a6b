"""CoNLL-2003: files, and entity scores against seqeval."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.answers import entities
from bert_jax.tasks import tagging
from tests.refusals import refused
from tests.tasks.files import put

CONLL_LABELS = ('O', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC', 'B-ORG', 'I-ORG', 'B-PER', 'I-PER')

IOB1 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC
lamb NN I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
-DOCSTART- -X- O O

-DOCSTART- -X- O O

Blackburn NNP I-NP I-LOC


EU NNP I-NP I-ORG
"""


SENTENCES = [
    tagging.Sentence(['EU', 'rejects', 'German', 'British', 'lamb'],
             ['B-ORG', 'O', 'B-MISC', 'B-MISC', 'O'], 1),
    tagging.Sentence(['Peter', 'Blackburn'], ['B-PER', 'I-PER'], 1),
    tagging.Sentence(['Blackburn'], ['B-LOC'], 3), tagging.Sentence(['EU'], ['B-ORG'], 3)]


@pytest.mark.parametrize(('name', 'content'), [
    ('eng.train', IOB1), ('eng.train.gz', IOB1),
    ('windows', IOB1.replace('\n', '\r\n')), ('tabs', IOB1.replace(' ', '\t')),
    ('two columns', '\n'.join(' '.join(line.split()[::3]) for line in IOB1.split('\n'))),
    ('a.jsonl', [{'words': s.words, 'tags': s.tags} for s in SENTENCES]),
], ids=lambda x: x if len(x) < 20 else '')
def test_editions_of_a_file_are_read_alike(tmp_path, name, content):
    examples = tagging.read_tagged(put(tmp_path, name, content), words='words', tags='tags')
    assert examples.sentences == (  # JSON lines have no documents
        [s._replace(document=0) for s in SENTENCES] if name == 'a.jsonl' else SENTENCES)
    assert examples.labels == CONLL_LABELS and len(examples) == 4


def test_a_file_without_docstart_is_one_document_and_unicode_spaces_do_not_separate(tmp_path):
    examples = tagging.read_tagged(put(tmp_path, 'eng.train', '\u00a0 O\na\u2003b I-X\n\nc O\n'))
    assert examples.sentences == [
        tagging.Sentence(['\u00a0', 'a\u2003b'], ['O', 'B-X']), tagging.Sentence(['c'], ['O'])]
    assert examples.labels == ('O', 'B-X', 'I-X')


@pytest.mark.parametrize(('text', 'message'), [
    ('', 'holds no rows'),
    ('-DOCSTART- -X- O O\n\n', 'holds no rows'),
    ('EU\nrejects\n', 'one column: there are no tags'),
    (b'EU O\n\xe9t\xe9 O\n', 'line 2 is not UTF-8'),
    ('a NN O\nb I-X\nc I-X\n',
     '2 of 3 rows are malformed.*line 2: columns: 2, where the first line has 3'),
])
def test_bad_files_are_refused_in_one_line(tmp_path, text, message):
    path = put(tmp_path, 'eng.train', text)
    with refused(match=f'^{path}.*{message}'):
        tagging.read_tagged(path)


def test_the_original_files_and_their_iob2_edition_are_the_same(shared_data):
    folder = shared_data / 'conll2003'
    train, other = (tagging.read_tagged(str(path)) for path in (
        folder / 'eng.train.gz', folder / 'bio' / 'train.txt.gz'))
    assert (len(train), len(train.tags)) == (14041, 203621)
    assert len({s.document for s in train.sentences}) == 946
    assert train.labels == CONLL_LABELS
    assert train.sentences == other.sentences


ANY_TAG = st.sampled_from(
    ['O', 'O', 'B-PER', 'I-PER', 'E-PER', 'S-PER', 'B-LOC', 'I-LOC', 'E-LOC', 'I-A-B'])


@pytest.mark.extras
@pytest.mark.filterwarnings('ignore::UserWarning')
@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(ANY_TAG, ANY_TAG, st.booleans()), max_size=7), min_size=1,
                max_size=6))
def test_scores_are_those_of_seqeval_whatever_the_tags(sentences):
    seqeval = pytest.importorskip('seqeval.metrics', reason='seqeval is not installed')
    gold = [[tag for tag, _, _ in sentence] for sentence in sentences]
    predicted = [[tag if right else other for tag, other, right in sentence]
                 for sentence in sentences]
    ours = entities.conll_scores(predicted, gold)
    if any(gold):
        assert ours['accuracy'] == pytest.approx(seqeval.accuracy_score(gold, predicted))
    types = {name.partition('/')[0] for name in ours if '/' in name}
    if set(itertools.chain(*gold, *predicted)) <= {'O'}:
        assert not types
        assert ours['f1'] == ours['precision'] == ours['recall'] == 0.0
        return
    theirs = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
    assert types == {name for name in theirs if not name.endswith(' avg')}
    prefixes = {name: f'{name}/' for name in types}
    if 'micro avg' in theirs:
        prefixes['micro avg'] = ''
    for name, prefix in prefixes.items():
        assert ours[f'{prefix}precision'] == pytest.approx(theirs[name]['precision'], abs=1e-12)
        assert ours[f'{prefix}recall'] == pytest.approx(theirs[name]['recall'], abs=1e-12)
        assert ours[f'{prefix}f1'] == pytest.approx(theirs[name]['f1-score'], abs=1e-12)


@pytest.mark.parametrize(('tags', 'expected'), [
    # IOB1: B- only where an entity directly follows another of its type.
    ('I-PER I-PER B-PER O I-LOC', 'B-PER I-PER B-PER O B-LOC'),
    ('I-PER I-LOC I-LOC', 'B-PER B-LOC I-LOC'),
    ('B-PER I-PER O I-PER', 'B-PER I-PER O B-PER'),
    ('B-PER I-LOC', 'B-PER B-LOC'),
    ('B-A I-A E-A O S-A S-A S-B', 'B-A I-A I-A O B-A B-A B-B'),  # IOBES
    # Invalid IOBES: E- and S- end an entity all the same.
    ('S-A I-A E-A E-A I-A', 'B-A B-A I-A B-A B-A'),
    ('E-A O B-A S-A E-B E-A', 'B-A O B-A B-A B-B B-A'),
    ('', ''),
])
def test_tags_in_iob2(tags, expected):
    assert entities.to_iob2(tags.split()) == expected.split()


@pytest.mark.parametrize(('tags', 'meant'), [
    ('O B-PER I-PER', 'O B-PER I-PER'),
    ('I-PER', 'I-PER'),  # IO
    ('b-per i-per o', 'B-per I-per O'),
    ('PER-B PER-I O', 'B-PER I-PER O'),
    ('B_PER I_PER', 'B-PER I-PER'),
    ('B-A-1 I-A-1', 'B-A-1 I-A-1'),
    ('B-PER I-PER L-PER U-LOC O', 'B-PER I-PER E-PER S-LOC O'),  # BILOU
    ('B-PER M-PER E-PER S-LOC O', 'B-PER I-PER E-PER S-LOC O'),  # BMES
    ('NN VB', ''), ('PER O', ''), ('B I O', ''), ('O', ''), ('B-PER PER-B', ''),
])
def test_tags_that_mark_entities(tags, meant):
    expected = dict(zip(tags.split(), meant.split(), strict=True)) if meant else {}
    assert entities.entity_tags(tags.split()) == expected
    assert entities.are_entities(tags.split()) == bool(meant)


@pytest.mark.parametrize(('gold', 'predicted', 'correct', 'found', 'wanted'), [
    ('B-PER I-PER O', 'I-PER I-PER O', 1, 1, 1),  # the beginning may be marked with I-
    ('B-PER I-PER O', 'B-PER O O', 0, 1, 1),  # too short
    ('B-PER I-PER O', 'B-PER I-LOC O', 0, 2, 1),  # another type begins another entity
    ('B-PER B-PER O', 'B-PER I-PER O', 0, 1, 2),
    ('O O O', 'O B-PER O', 0, 1, 0),
    ('B-PER | I-PER', 'B-PER | B-PER', 2, 2, 2),  # entities end with their sentence
    ('O O', 'O O', 0, 0, 0),
])
def test_scores_by_hand(gold, predicted, correct, found, wanted):
    scores = entities.conll_scores(*(
        [part.split() for part in tags.split('|')] for tags in (predicted, gold)))
    assert scores['precision'] == (correct / found if found else 0)
    assert scores['recall'] == (correct / wanted if wanted else 0)
    assert scores['f1'] == (2 * correct / (found + wanted) if found + wanted else 0)
