"""Tags of the user's own: how they are read, named and scored."""

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.tagging import read_tagged
from tests.opening import open_task
from tests.refusals import refused
from tests.tasks.files import put
from tests.tasks.opened import WORDS, config_of, opened, parquet

pytestmark = pytest.mark.usefixtures('vocabulary')

POS = '\n'.join(f'{a} DT\n{b} NN\n' for a, b in zip(WORDS, WORDS[1:]))


@pytest.mark.parametrize(('text', 'labels', 'metric'), [
    (POS, ('DT', 'NN'), 'accuracy'),
    ('john S-PER\nwas O\n\njohn B-PER\nsmith E-PER\n', ('O', 'B-PER', 'I-PER'), 'f1'),
    ('john I-PER\nsmith B-PER\n\nwas O\n', ('O', 'B-PER', 'I-PER'), 'f1'),
])
def test_your_own_tags(text, labels, metric, tmp_path):
    source = put(tmp_path, 'own.txt', text)
    task = opened('tagging', source, tmp_path, eval_source=True)
    assert task.labels == labels and task.metric == metric
    assert task.majority_baseline == {metric: 0.5 if metric == 'accuracy' else 0.0}
    (dev,) = task.evaluated
    right = np.eye(len(labels), dtype=np.float32)[dev.units.tokens['token_labels']]
    assert dev.results({'logits': right})[0][metric] == 1


# By the format's own description: two words written as one, and one that the text leaves out.
TREEBANK = """# sent_id = 1
# text = was john
1-2\twasjohn\t_\t_\t_\t_\t_\t_\t_\t_
1\twas\tbe\tAUX\tVBD\t_\t0\troot\t_\t_
2\tjohn\tjohn\tPROPN\tNNP\t_\t1\tnsubj\t_\tSpaceAfter=No

1\tthe leader\tleader\tNOUN\t_\t_\t0\troot\t_\t_
1.1\tsaid\tsay\tVERB\t_\t_\t_\t_\t_\t_
"""


@pytest.mark.parametrize('name', ['own.conllu', 'own.CONLLU.gz'])
def test_a_treebank_gives_words_with_their_parts_of_speech(name, tmp_path):
    tagged = read_tagged(put(tmp_path, name, TREEBANK))
    assert [sentence.words for sentence in tagged.sentences] == [['was', 'john'], ['the leader']]
    assert tagged.tags_by_sentence == [['AUX', 'PROPN'], ['NOUN']]


@pytest.mark.parametrize('between', ['', '# sent_id = 2\n'])
def test_a_treebank_s_sentences_begin_where_words_are_counted_anew(between, tmp_path, capsys):
    path = put(tmp_path, 'own.conllu', between.join([TREEBANK.split('\n\n')[0] + '\n'] * 3))
    assert len(read_tagged(path)) == 3
    assert f'note: {path}: in 2 lines, such as line ' in capsys.readouterr().out


def test_a_treebank_s_words_may_count_from_0(tmp_path, capsys):
    sentence = ''.join(f'{i}\t{word}\t_\tX\t_\t_\t_\t_\t_\t_\n' for i, word in enumerate('abc'))
    tagged = read_tagged(put(tmp_path, 'own.conllu', f'{sentence}\n{sentence}'))
    assert [sentence.words for sentence in tagged.sentences] == [['a', 'b', 'c']] * 2
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize(('text', 'said'), [
    ('john\tPROPN\nwas\tAUX\n', 'line 1: columns: 2, where CoNLL-U has 10'),
    (TREEBANK.replace('AUX', '_').replace('NOUN', '_'),
     r'line 4: no part of speech \(UPOS, column 4\)'),
    (TREEBANK.replace('\n', '\r') + '\n1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n',
     'line 1 holds a lone CR .*convert the file'),
    ('1\t_\t_\tNOUN\t_\t_\t0\troot\t_\t_\n', '_ in the place of every word: its README'),
])
def test_treebanks_that_are_refused(text, said, tmp_path):
    with pytest.raises(InputError, match=said):
        read_tagged(put(tmp_path, 'own.conllu', text))


def test_no_other_column_of_a_treebank_is_the_label(tmp_path):
    source = put(tmp_path, 'own.conllu', TREEBANK)
    with pytest.raises(InputError, match='label=xpos: .*own.conllu, only upos is read'):
        opened('tagging', source, tmp_path, label='xpos')


@pytest.mark.parametrize(('text', 'said'), [
    ('john PER\nwas O\n', 'not every tag marks one: PER; for F1, write tags as B-TYPE'),
    ('john B\nwas O\n', 'not every tag marks one: B; for F1'),
    ('john I-PER\nwas O\n', 'are read as IOB2: the first change is from I-PER to B-PER'),
    ('john PER-U\nwas O\n', 'are read as IOB2: the first change is from PER-U to B-PER'),
])
def test_how_tags_are_read_is_said(text, said, tmp_path, capsys):
    opened('tagging', put(tmp_path, 'own.txt', text), tmp_path, eval_source=True)
    assert said in capsys.readouterr().out


NUMBERED_TAGS = [[1, 0], [0, 0]]


@pytest.fixture
def numbered_tags(tmp_path):
    """A file whose tags are numbers."""
    return put(tmp_path, 'own.jsonl', [
        {'text': ['the', 'leader'], 'label': tags} for tags in NUMBERED_TAGS])


@pytest.mark.parametrize('content', [
    '', 'O\nB-PER\nI-PER\n', '\ufeffO\r\nB-PER\r\nI-PER\r\n\r\n'])
def test_tags_that_are_numbers_get_their_names(content, numbered_tags, tmp_path):
    names = 'O,B-PER,I-PER'
    if content:
        names = put(tmp_path, 'names', content)
    task = opened('tagging', numbered_tags, tmp_path, eval_source=True, label_names=names)
    assert task.metric == 'f1' and task.labels == ('O', 'B-PER', 'I-PER')


def test_names_of_tags_that_are_no_utf_8_are_refused(numbered_tags, tmp_path):
    names = put(tmp_path, 'names', 'O\nB-PER\nI-PER\n'.encode('utf-16'))
    with refused(names, 'line 1 is not UTF-8'):
        opened('tagging', numbered_tags, tmp_path, eval_source=True, label_names=names)


@pytest.mark.parametrize('content', [
    '["O", "B-PER"]', '[\n "O",\n "B-PER"\n]\n', '{"0": "O"}', "['O', 'B-PER']"])
def test_names_of_tags_in_a_list_are_refused(content, numbered_tags, tmp_path):
    names = put(tmp_path, 'names.json', content)
    with refused(f'config.data.label_names={str(names)!r} holds a list', 'one name a line'):
        opened('tagging', numbered_tags, tmp_path, eval_source=True, label_names=names)
    with refused('config.data.label_names=', 'holds a list', 'with commas between'):
        opened('tagging', numbered_tags, tmp_path, eval_source=True, label_names=content)


@pytest.mark.parametrize('names', ['', 'O,B-PER'])
def test_tags_of_a_tokenizer_s_pieces_are_refused(names, tmp_path):
    source = put(tmp_path, 'own.jsonl', [
        {'text': ['a', 'b'], 'label': [1, 0]}, {'text': ['the', 'lead', '##er'],
                                                'label': [1, 0, -100]}])
    with refused('line 2', "'label' has -100", 'write whole words'):
        opened('tagging', source, tmp_path, eval_source=True, label_names=names)


def test_names_of_tags_come_from_parquet(tmp_path):
    names = {'_type': 'ClassLabel', 'names': ['O', 'B-PER', 'I-PER']}
    source = parquet(
        tmp_path / 'a.parquet', {'label': {'_type': 'Sequence', 'feature': names}},
        text=[['the', 'leader']] * 2, label=NUMBERED_TAGS)
    task = opened('tagging', source, tmp_path, eval_source=True)
    assert task.metric == 'f1' and task.labels == ('O', 'B-PER', 'I-PER')
    with pytest.raises(InputError, match='label 1 has no name in config.data.label_names'):
        opened('tagging', source, tmp_path, eval_source=True, label_names='O', max_malformed=0.0)


def test_tags_that_are_numbers_without_names_get_a_warning(numbered_tags, tmp_path, capsys):
    assert opened('tagging', numbered_tags, tmp_path, eval_source=True).metric == 'accuracy'
    assert 'no entities can be made: name them with' in capsys.readouterr().out


def test_a_number_without_a_name_or_no_tag_at_all_is_refused(numbered_tags, tmp_path):
    with pytest.raises(InputError, match='label 1 has no name in config.data.label_names'):
        opened('tagging', numbered_tags, tmp_path, eval_source=True, label_names='O',
               max_malformed=0.0)
    source = put(tmp_path, 'null.jsonl', [{'text': ['the', 'leader'], 'label': ['B-PER', None]}])
    with pytest.raises(InputError, match='1 of 1 rows are malformed .* its label is empty'):
        opened('tagging', source, tmp_path, eval_source=True)


# Sentences of the same entities, as taggers of each scheme have learned to write them.
SCHEMES = {
    'IOB1': 'I-A I-A B-A O I-B',
    'IOB2': 'B-A I-A B-A O B-B',
    'IOBES': 'B-A E-A S-A O S-B',
    'BILOU': 'B-A L-A U-A O U-B',
    'lower case': 'b-A i-A b-A o b-B',
    'letters last': 'A-B A-I A-B O B-B',
}


def labels_of_a_scheme(scheme):
    """The labels of a tagger of this scheme, O last."""
    tags = set(SCHEMES[scheme].split())
    if scheme == 'IOB1':  # it has a B- of each type, too
        tags |= {tag.replace('I', 'B', 1) for tag in tags}
    return (*sorted(tags - {'O', 'o'}), *(tags & {'O', 'o'}))


def sure_logits(eval_set, labels, tags):
    """Logits of the words of one sentence, each sure of its tag."""
    logits = np.zeros((len(eval_set.units.sequences.ids), len(labels)), np.float32)
    for word, tag in enumerate(tags, 1):  # after [CLS]
        logits[word, labels.index(tag)] = 50
    return logits


@pytest.mark.parametrize('gold', ['IOB1', 'IOB2', 'IOBES', 'lower case'])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_a_perfect_tagger_trained_elsewhere_is_perfect_whatever_the_schemes(
    scheme, gold, tmp_path
):
    gold_tags = SCHEMES[gold].split()
    source = put(tmp_path, 'own.txt', [
        *(f'{word} {tag}' for word, tag in zip(WORDS, gold_tags)), ''])
    labels = labels_of_a_scheme(scheme)
    config = config_of('tagging', source, tmp_path, eval_source=True)
    (dev,) = open_task(config, ScoredModel(labels)).evaluated
    tags = SCHEMES[scheme].split()
    scores, files = dev.results({'logits': sure_logits(dev, labels, tags)})
    assert scores['f1'] == scores['accuracy'] == 1 and scores['loss'] < 1e-6
    assert files['dev_predictions.txt'].splitlines()[:5] == [
        f'{word} {tag} {tag}' for word, tag in zip(WORDS, tags)]


def test_a_tagger_of_entities_without_beginnings_is_scored_by_its_own_tags(tmp_path):
    source = put(tmp_path, 'own.txt', 'john B-A\nsmith B-A\nwas O\nborn B-B\n')
    config = config_of('tagging', source, tmp_path, eval_source=True)
    labels = ('O', 'I-A', 'I-B')
    (dev,) = open_task(config, ScoredModel(labels)).evaluated
    scores, _ = dev.results({'logits': sure_logits(dev, labels, ['I-A', 'I-A', 'O', 'I-B'])})
    assert scores['accuracy'] == 1 and scores['loss'] < 1e-6
    assert scores['f1'] == 2 / 5  # two entities side by side are one in its scheme


def test_a_tag_that_occurs_only_in_evaluation_counts_as_a_wrong_prediction(tmp_path, capsys):
    source = put(tmp_path, 'own.jsonl', [{'text': ['the', 'leader'], 'label': [0, 1]}])
    dev = put(tmp_path, 'dev.jsonl', [{'text': ['the', 'john'], 'label': [0, 7]}])
    task = opened('tagging', source, tmp_path, eval_source=dev)
    size = len(task.evaluated[0].units.sequences.ids)
    scores, _ = task.evaluated[0].results({'logits': np.tile([[1.0, 0.0]], (size, 1))})
    assert task.labels == ('0', '1') and scores['accuracy'] == 0.5
    assert scores['loss'] == pytest.approx(np.log1p(np.exp(-1)))  # over words with known tags
    assert '7 occur only in evaluation' in capsys.readouterr().out


def test_an_empty_word_is_scored_like_any_other(tmp_path):
    source = put(tmp_path, 'own.jsonl', [{'text': ['john', '', 'was'], 'label': list('XYX')}])
    task = opened('tagging', source, tmp_path, eval_source=True)
    (dev,) = task.evaluated
    right = np.eye(2, dtype=np.float32)[dev.units.tokens['token_labels']]
    scores, files = dev.results({'logits': right})
    assert scores['accuracy'] == 1
    assert files['dev_predictions.txt'] == 'john X X\n[UNK] Y Y\nwas X X\n\n'
