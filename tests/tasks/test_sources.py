"""The user's own files: which are read, and which of their examples are held out."""

import dataclasses

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.sources import held_out
from tests.opening import open_task
from tests.tasks.files import put
from tests.tasks.opened import WORDS, config_of, opened

pytestmark = pytest.mark.usefixtures('vocabulary')


@dataclasses.dataclass(frozen=True)
class HeldOutCase:
    """How often each text occurs, which share is asked for, and which warnings follow."""

    counts: list[int]
    share: float
    few: bool = False
    far: bool = False


@pytest.mark.parametrize('case', [
    HeldOutCase([50] * 30, 0.1, few=True),  # of three texts, or of none, by the hash alone
    HeldOutCase([900, *[1] * 600], 0.1),
    HeldOutCase([1] * 1000, 0.1),
    HeldOutCase([400, *[2] * 200], 0.4),
    HeldOutCase([500, 300, 200], 0.25, few=True),
    HeldOutCase([960, *[1] * 40], 0.3, far=True),
    HeldOutCase([1] * 20, 0.05, few=True),  # the hash alone takes two
])
def test_equal_texts_are_on_one_side_and_the_share_is_near(case, tmp_path, capsys):
    texts = [f'the leader was born {i}' for i, count in enumerate(case.counts)
             for _ in range(count)]
    source = put(tmp_path, 'own.csv', [
        'text,label', *(f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts))])
    out = held_out([f'{text}\n{text}' for text in texts], case.share, source)
    scored = {text for text, is_out in zip(texts, out, strict=True) if is_out}
    trained = {text for text, is_out in zip(texts, out, strict=True) if not is_out}
    assert not scored & trained
    assert (abs(out.mean() - case.share) > case.share / 2) == case.far
    opened('classification', source, tmp_path, held_out=case.share)
    said = capsys.readouterr().out
    assert (f'scored: {out.sum():,} of {len(texts):,} examples of {source} ({len(scored)} of '
            f'{len(case.counts):,} distinct texts)') in said
    assert (' distinct texts are few to score' in said) == case.few
    assert ('asks for' in said) == case.far


def test_an_example_stays_on_its_side_when_others_are_added():
    texts = [f'text {i}' for i in range(2000)]
    before = held_out(texts[:700], 0.1, 'a file')
    assert held_out([*texts[1000:], *texts[:700]], 0.1, 'a file')[1000:].tolist() == before.tolist()


def test_questions_of_your_own_are_held_out_by_their_paragraphs(tmp_path, capsys):
    rows = [{'id': f'{i}{word}', 'question': f'who was {word}', 'context': f'{word} was john',
             'answers': {'text': ['john'], 'answer_start': [len(f'{word} was ')]}}
            for word in WORDS for i in range(2)]
    rows[3]['answers']['answer_start'] = [0]  # left out of training
    config = config_of('squad_v1', put(tmp_path, 'own.jsonl', rows), tmp_path, held_out=0.3)
    task = open_task(config)
    said = capsys.readouterr().out
    (dev,) = task.evaluated
    trained = set(task.train.contents())
    scored = set(dev.units.contents())
    assert trained and scored and not trained & scored
    assert 19 <= len(task.train) + len(dev.units) <= 20 and len(dev.units) % 2 == 0
    assert f'{len(dev.units)} questions to score, on {len(dev.units) // 2} paragraphs\n' in said
    again = open_task(config, ScoredModel())
    assert again.train is None and again.evaluated[0].units.digest() == dev.units.digest()


_SQUAD = [{'id': str(i), 'question': f'who was {word}', 'context': f'{word} was john',
           'answers': {'text': ['john'], 'answer_start': [len(f'{word} was ')]}}
          for i, word in enumerate(WORDS[:8])]
_CHOICES = [{'startphrase': word, 'choices': ['the', 'was', 'in', 'who'], 'answer': 0}
            for word in WORDS[:8]]
_OWN_CHOICES = {'text': 'startphrase', 'choices': 'choices', 'label': 'answer'}


@pytest.mark.parametrize(('task', 'rows', 'data'), [
    ('classification', [{'text': word, 'label': 'ab'[i % 2]} for i, word in enumerate(WORDS)], {}),
    ('regression', [{'text': word, 'label': i} for i, word in enumerate(WORDS)], {}),
    ('cola', [{'sentence': word, 'label': i % 2} for i, word in enumerate(WORDS)], {}),
    ('tagging', [{'tokens': [word, 'was'], 'tags': ['X', 'Y']} for word in WORDS],
     {'text': 'tokens', 'label': 'tags'}),
    ('conll', [{'tokens': [word, 'was'], 'ner_tags': ['B-PER', 'O']} for word in WORDS], {}),
    ('squad_v1', _SQUAD, {}), ('swag', _CHOICES, {}), ('multiple_choice', _CHOICES, _OWN_CHOICES),
])
def test_scored_rows_that_are_trained_on_are_counted(task, rows, data, tmp_path, capsys):
    source = put(tmp_path, 'train.jsonl', rows[:6])
    dev = put(tmp_path, 'dev.jsonl', rows[4:8])
    opened(task, source, tmp_path, eval_source=dev, **data)
    warning = f'warning: 2 of the 4 examples of config.data.eval_source={dev} are in {source} too'
    assert warning in capsys.readouterr().out
    open_task(config_of(task, source, tmp_path, eval_source=dev, **data), ScoredModel())
    opened(task, source, tmp_path, eval_source=put(tmp_path, 'new.jsonl', rows[6:8]), **data)
    assert 'trained on' not in capsys.readouterr().out


@pytest.mark.parametrize(('text', 'data', 'said'), [
    ('text,label\nthe,a\njohn,a\n', {}, 'own.csv has one label, a'),
    ('text,label\nthe,a\njohn,b\n', {'held_out': 0.0}, 'would leave'),
])
def test_data_with_one_label_or_no_held_out_rows_are_refused(text, data, said, tmp_path):
    with pytest.raises(InputError, match=said):
        opened('classification', put(tmp_path, 'own.csv', text), tmp_path, **data)


@pytest.mark.parametrize('source', ['a.csv,b.csv', '*.csv', '[ab].csv'])
def test_one_file_is_wanted_by_its_name(source, tmp_path):
    for name in 'ab':
        put(tmp_path, f'{name}.csv', 'text,label\nthe,a\nleader,b\n')
    with pytest.raises(InputError, match='does not exist: .* one and by its name'):
        opened('classification', tmp_path / source, tmp_path)
