"""`python -m bert_jax.predict`: where texts come from, what is written, faults in one line."""

import dataclasses
import io
import json
import sys

import jax
import numpy as np
import pytest

from bert_jax.predict import outputs
from bert_jax.predict.__main__ import main
from bert_jax.predict.outputs import write_features
from tests.conftest import run_python
from tests.predict import tiny


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command in this process: (exit status, lines of JSON, standard error).

    Lines of progress are left out, as only a busy machine prints them.
    """
    one = jax.devices()[:1]

    def run(command, *arguments, stdin=b'', model='pretraining'):
        monkeypatch.setattr(jax, 'devices', lambda: one)
        argv = ['predict', command, '--model', str(tiny.RECORDED / model), *map(str, arguments)]
        monkeypatch.setattr(sys, 'argv', argv)
        monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
            status = 0
        except SystemExit as stopped:
            status = stopped.code
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines(True) if not line.endswith(' a second\n')]
        return status, [json.loads(line) for line in out.splitlines()], ''.join(lines)

    return run


def test_texts_from_arguments_a_file_and_standard_input_are_the_same(run, tmp_path):
    texts = ['a [MASK] c', 'é [MASK]', '[MASK] b.']
    (tmp_path / 'texts').write_bytes('\ufeffa [MASK] c\r\né [MASK]\n[MASK] b.'.encode())
    _, expected, err = run('fill-mask', '--top-k=2', *texts)
    assert not err
    assert [line['text'] for line in expected] == texts
    assert all(len(line['predictions']) == 2 for line in expected)
    assert run('fill-mask', '--top-k=2', '--input', tmp_path / 'texts')[1] == expected
    assert run('fill-mask', '--top-k=2', stdin='\n'.join(texts).encode())[1] == expected


def test_pairs(run):
    _, expected, _ = run('next-sentence', 'a b', 'c', 'd', 'e f')
    assert [(line['first'], line['second']) for line in expected] == [('a b', 'c'), ('d', 'e f')]
    assert run('next-sentence', stdin=b'a b\tc\nd\te f\n')[1] == expected
    _, pair, _ = run('classify', '--pairs', 'a', 'b', model='classification')
    assert run('classify', 'a\tb', model='classification')[1] == pair
    assert pair[0]['first'] == 'a'
    _, two, _ = run('classify', 'a', 'b', model='classification')
    assert [line['text'] for line in two] == ['a', 'b']


def test_questions(run, tmp_path):
    command = ['answer', '--null-threshold=0', '--max-answer-length=2']
    lines = b'a\tb c d e\n{"question": "a", "context": "b c d e", "id": 3}\n'
    _, answers, _ = run(*command, stdin=lines, model='question_answering')
    assert answers[0] == answers[1]
    (tmp_path / 'q.csv').write_text('context,question\nb c d e,a\n')
    for texts in (('a', 'b c d e'), ('--input', tmp_path / 'q.csv')):
        assert run(*command, *texts, model='question_answering')[1] == answers[:1]
    assert set(answers[0]) == {'question', 'answer', 'start', 'end', 'score', 'probability'}


def test_questions_in_the_layout_of_squad(run, tmp_path):
    asked = [{'id': f'q{i}', 'question': question} for i, question in enumerate('ab')]
    (tmp_path / 'q.json').write_text(json.dumps(
        {'data': [{'paragraphs': [{'context': 'b c d e', 'qas': asked}]}]}))
    (tmp_path / 'q.jsonl').write_text(''.join(
        json.dumps(row | {'context': 'b c d e'}) + '\n' for row in asked))
    _, answers, _ = run('answer', '--input', tmp_path / 'q.json', model='question_answering')
    assert [(line['id'], line['question']) for line in answers] == [('q0', 'a'), ('q1', 'b')]
    assert answers == run('answer', '--input', tmp_path / 'q.jsonl', '--id=id',
                          model='question_answering')[1]


@pytest.fixture
def table(tmp_path):
    """A table with an empty text in its second row."""
    file = tmp_path / 'new.csv'
    file.write_text('other,mine,key\nb,a,x1\n,d,x2\nc c,e,x3\n')
    return file


def test_the_columns_and_ids_of_a_table_are_named(run, table):
    _, lines, _ = run('classify', '--input', table, '--text=mine', '--text-pair=other', '--id=key',
                      model='classification')
    assert [line['id'] for line in lines] == ['x1', 'x2', 'x3']
    assert [line['first'] for line in lines] == ['a', 'd', 'e']
    assert 'error' in lines[1]


def test_the_columns_of_a_run_are_those_of_its_training(run, table, tmp_path, monkeypatch):
    folder = tmp_path / 'run'
    (folder / 'checkpoints').mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps({
        'task': 'classification', 'data': {'text': 'mine', 'text_pair': 'other'}}))
    _, named, _ = run('classify', '--input', table, '--text=mine', '--text-pair=other',
                      model='classification')
    loaded = tiny.recorded('classification')[0]
    monkeypatch.setattr('bert_jax.loading.load', lambda *_: loaded)
    monkeypatch.setattr(loaded, 'note', loaded.note)  # the command sets it; other tests warn
    _, lines, err = run('classify', '--input', table, model=folder)
    assert lines == named
    assert 'mine, other, as in training' in err
    status, _, err = run('classify', '--input', table, '--id=none', model=folder)
    assert status == 2 and "'none'" in err


def test_ids_are_a_column_of_a_table(run):
    status, _, err = run('classify', 'a', '--id=key', model='classification')
    assert status == 2 and '--id=key names a column of --input' in err


def test_each_word_of_a_list_is_tagged_an_empty_one_too(run, tmp_path):
    rows = [['at', '', 'bent'], ['x y', 'z']]
    (tmp_path / 'own.jsonl').write_text(''.join(json.dumps({'w': row}) + '\n' for row in rows))
    _, lines, _ = run('tag', '--input', tmp_path / 'own.jsonl', '--text=w',
                      model='token_classification')
    assert [[tag['word'] for tag in line['tags']] for line in lines] == rows


def test_score_ends_with_a_line_on_the_whole_corpus(run):
    _, (*texts, last), _ = run('score', 'a b c', 'q is.')
    assert [line['num_tokens'] for line in texts] == [3, 4]
    corpus = last['corpus']
    assert (corpus['num_texts'], corpus['num_tokens']) == (2, 7)
    total = sum(line['log_probability'] for line in texts)
    assert corpus['log_probability'] == pytest.approx(total, rel=1e-5)
    assert corpus['pseudo_perplexity'] == pytest.approx(np.exp(-total / 7), rel=1e-5)


def test_features_as_the_original_writes_them(run):
    status, (line,), _ = run('features', '--layers=-1,-2', 'at', model='base')
    assert status == 0
    assert line['linex_index'] == 0
    assert [feature['token'] for feature in line['features']] == ['[CLS]', 'a', '##t', '[SEP]']
    model, _ = tiny.recorded('base')
    (expected,) = model.features(['at'], layers=(-1, -2))
    for feature, of_token in zip(line['features'], expected['values'], strict=True):
        assert list(feature) == ['token', 'layers']
        assert [layer['index'] for layer in feature['layers']] == [-1, -2]
        for layer, values in zip(feature['layers'], of_token, strict=True):
            assert layer['values'] == [round(float(x), 6) for x in values]


def test_features_of_pairs(run):
    _, (_, bars, tab), _ = run('features', 'at', 'b ||| q', 'b\tq', model='base')
    assert [bars['linex_index'], tab['linex_index']] == [1, 2]
    tokens = [feature['token'] for feature in bars['features']]
    assert tokens == ['[CLS]', 'b', '[SEP]', 'q', '[SEP]']
    assert bars['features'] == tab['features']


def test_a_vector_of_a_text(run):
    _, (line,), _ = run('features', '--pool=mean', 'at', model='base')
    (expected,) = tiny.recorded('base')[0].features(['at'])
    np.testing.assert_allclose(line['vector'], expected['values'][:, 0].mean(0), atol=2e-6)


def test_features_to_a_file(run, tmp_path):
    model, _ = tiny.recorded('base')
    texts = ['at', 'b c d', 'q']
    expected = model.features(texts, layers=(-2, -1))
    output = tmp_path / 'tokens.npz'
    status, lines, _ = run('features', '--layers=-2,-1', '--output', output, *texts, model='base')
    assert (status, lines) == (0, [])
    found = np.load(output)
    assert found['layers'].tolist() == [-2, -1]
    assert found['values'].dtype == np.float32
    for i, result in enumerate(expected):
        part = slice(*found['offsets'][i : i + 2])
        assert found['tokens'][part].tolist() == result['tokens']
        np.testing.assert_allclose(found['values'][part], result['values'], atol=1e-5)
    assert len(found['values']) == len(found['tokens']) == found['offsets'][-1]
    output = tmp_path / 'vectors.npz'
    run('features', '--pool=cls', '--output', output, *texts, model='base')
    np.testing.assert_allclose(
        np.load(output)['vectors'], model.vectors(texts, pool='cls'), atol=1e-5)


def test_a_text_without_features_has_no_tokens_in_the_file_and_is_told(tmp_path):
    some = {'tokens': ['a', 'b'], 'values': np.ones((2, 1, 3), np.float32)}
    results = [some, {'error': 'too long'}, some]
    told = list(write_features(str(tmp_path / 'x.npz'), results, layers=(-1,), hidden_size=3))
    assert told == [{}, {'linex_index': 1, 'error': 'too long'}, {}]
    found = np.load(tmp_path / 'x.npz')
    assert found['offsets'].tolist() == [0, 2, 2, 4]
    assert found['tokens'].tolist() == ['a', 'b'] * 2 and found['values'].shape == (4, 1, 3)


def test_progress_counts_texts(monkeypatch, capsys):
    monkeypatch.setattr(outputs, '_PROGRESS_SECONDS', -1.0)
    outputs.print_results([{'text': 'a'}, {'text': 'b'}], is_exact=False)
    one, two = capsys.readouterr().err.splitlines()
    assert one.startswith('1 text, ') and two.startswith('2 texts, ')


@pytest.mark.parametrize(('arguments', 'message'), [
    (['fill-mask', 'no mask'], 'text 1: it has no [MASK]: write [MASK] where a word is to be'),
    (['fill-mask'], 'standard input has no texts'),
    (['fill-mask', '--text=x', '--input=x.txt'], '--text=x names a column: --input must be'),
    (['fill-mask', '--text-pair=x', '--input=x.csv'], 'name the first with --text'),
    (['fill-mask', '--input=there/is/none'], '--input=there/is/none: No such file'),
    (['fill-mask', '--input=x', 'a [MASK]'], 'give texts or --input=x, not both'),
    (['next-sentence', 'a'], "1 texts are no pairs: two arguments are one pair ('a' has no"),
    (['features', '--layers=1,x', 'a'], "argument --layers: invalid layers value: '1,x'"),
    (['features', '--pool=mean', '--layers=-1,-2', 'a'], '--pool takes one layer'),
    (['features', '--output=x.npy', 'a'], '--output=x.npy must end in .npz'),
    (['export', '--output=x.npz'], 'end it in .stablehlo'),
    (['export', '--to=onnx', '--dtype=bfloat16', '--output=x'], 'leave out --dtype=bfloat16'),
    (['classify', '--choices=x', 'a'], '--choices go with the column --text'),
    (['classify', 'a'], 'this model serves fill-mask, score, next-sentence, features, export'),
], ids=str)
def test_faults_in_one_line(run, arguments, message):
    status, _, err = run(*arguments)
    assert status == 2
    assert err.startswith('error: ') and err.count('\n') == 1
    assert message in err


@dataclasses.dataclass(frozen=True)
class FaultyLine:
    """A line that a command cannot read, after one that it can."""

    command: str
    model: str
    good: bytes
    faulty: bytes
    message: str

    def __str__(self):
        return f'{self.command} {self.faulty}'


def question(faulty, message):
    return FaultyLine('answer', 'question_answering', b'a\tb', faulty, message)


FAULTY_LINES = [
    FaultyLine('fill-mask', 'pretraining', b'[MASK]', b'\n', 'it is empty'),
    FaultyLine('next-sentence', 'pretraining', b'a\tb', b'a b\n', 'line 2: two texts with a TAB'),
    FaultyLine('tag', 'token_classification', b'a', b'\xff\n', 'line 2: not UTF-8 (byte 0xff)'),
    FaultyLine('features', 'base', b'a', b'\xff\n', 'line 2: not UTF-8'),
    FaultyLine('features', 'base', b'a', b'\0a\0\n', 'line 2: UTF-16, not UTF-8'),
    question(b'a question\n', 'line 2: two texts with a TAB'),
    question(b'a\tb\tc', 'two texts with a TAB'),
    question(b'{"question": "a"}', 'it is no {"question":'),
    question(b'{"question": ', 'it is no {"question"'),
    question(b'{"question": "a", "context": 3}', 'a text is not a string'),
]
NAMES_OF_TEXTS = ('first', 'text', 'question', 'linex_index')


@pytest.mark.parametrize('case', FAULTY_LINES, ids=str)
def test_a_faulty_line_has_an_error_as_its_result(run, case):
    status, (good, wrong), err = run(
        case.command, stdin=case.good + b'\n' + case.faulty, model=case.model)
    assert status == 3 and 'error' not in good
    assert set(wrong) == {*good, 'error'}
    for name in good:
        assert wrong[name] in (None, []) or name in NAMES_OF_TEXTS
    assert case.message in wrong['error']
    assert case.message in err and err.count('\n') == 1
    assert err.startswith('text 2: ') and err.endswith('(1 of 2 have no result)\n')


@pytest.mark.parametrize(('lines', 'is_read'), [
    (b'a b\0c\nb\0\0a\n', True),  # the tokenizer drops it
    ('a b\n\u0436\u0436\n'.encode('utf-16'), False),
    ('a b\nc d'.encode('utf-16-be'), False),
    ('a b\nc d'.encode('utf-16-le'), False),
])
def test_lines_with_nul_are_refused_as_utf16_alone(run, lines, is_read):
    status, results, err = run('features', stdin=lines, model='base')
    assert status == (0 if is_read else 2)
    assert len(results) >= 2
    assert all(('error' not in result) == is_read for result in results)
    assert is_read or '(iconv -f UTF-16 -t UTF-8 FILE)' in err


@pytest.mark.parametrize(('lines', 'num_lines', 'told'), [
    (b'a\rb\r', 1, 1), (b'a\nb\rc\rd\ne\rf', 3, 2), (b'a\r\nb\r\n', 2, 0)])
def test_lines_that_end_with_cr_only_are_told(run, lines, num_lines, told):
    status, results, err = run('features', stdin=lines, model='base')
    assert status == 0 and len(results) == num_lines
    assert err.count('holds a CR (0x0D), which ends no line here') == bool(told)
    assert not told or f'line {told} holds' in err


def test_columns_by_name(run, tmp_path):
    """For other formats see tests/rows/test_tables.py."""
    file = tmp_path / 'texts.csv'
    file.write_text('id,two,one\n3,c,"a ""b"""\n3,f g,"d, e"\n1\n')
    named = ('--input', file, '--text=one')
    status, (*single, bad), err = run('classify', *named, model='classification')
    assert status == 3 and [x['text'] for x in single] == ['a "b"', 'd, e']
    assert 'texts.csv, line 4' in bad['error'] and err.startswith('text 3: ')
    _, pairs, _ = run('classify', *named, '--text-pair=two', model='classification')
    assert [(x['first'], x['second']) for x in pairs] == [
        ('a "b"', 'c'), ('d, e', 'f g'), (None, None)]


def test_a_second_column_is_refused_by_a_command_of_single_texts(run, tmp_path):
    (tmp_path / 'texts.csv').write_text('one,two\na [MASK],b\n')
    status, lines, err = run(
        'score', '--input', tmp_path / 'texts.csv', '--text=one', '--text-pair=two')
    assert (status, lines) == (2, []) and 'leave out --text-pair' in err


def test_columns_of_choices(run, tmp_path):
    _, (expected,), _ = run('classify', 'a b', 'c', 'd', 'e f', model='multiple_choice')
    assert expected['choices'] == ['c', 'd', 'e f']
    assert run('classify', stdin=b'a b\tc\td\te f', model='multiple_choice')[1] == [expected]
    csv_file, lines = tmp_path / 'own.csv', tmp_path / 'own.jsonl'
    csv_file.write_text('x,q,y,z\nc,a b,d,e f\n')
    lines.write_text(json.dumps({'q': 'a b', 'all': ['c', 'd', 'e f']}))
    for file, choices in ((csv_file, 'x,y,z'), (lines, 'all')):
        status, found, _ = run('classify', '--input', file, '--text=q', f'--choices={choices}',
                               model='multiple_choice')
        assert status == 0 and found == [expected]


def test_notes_go_to_standard_error(run):
    status, lines, err = run('features', 'a ' * 20, model='base')
    assert status == 0 and len(lines) == 1
    assert err == 'note: text 1 has 20 tokens, the model takes 8: its end is left out\n'
    _, lines, err = run('features', '--pool=mean', *['a ' * 9] * 30, model='base')
    assert len(lines) == 30
    assert err.splitlines() == [
        'note: text 1 has 9 tokens, the model takes 8: its end is left out',
        'note: 29 more texts are longer than that: their ends are left out']


@pytest.mark.parametrize('command', ['fill-mask', 'next-sentence', 'classify', 'answer', 'tag',
                                     'features', 'score', 'export'])
def test_help(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['predict', command, '--help'])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert '--model DIR' in out and 'Writes' in out


def test_as_a_program_without_tensorflow():
    """TensorFlow cannot be imported in this process."""
    code = ('import runpy, sys; sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = None; '
            'runpy.run_module("bert_jax.predict", run_name="__main__", alter_sys=True)')
    process = run_python(
        '-c', code, 'fill-mask', '--model', tiny.RECORDED / 'pretraining', '--top-k=1',
        stdin='a [MASK]\nn\u00e9 [MASK]\nnone\n', PYTHONIOENCODING='ascii')
    assert process.returncode == 3, process.stderr
    assert process.stderr.splitlines()[-1].startswith('text 3: it has no [MASK]')
    assert [json.loads(line)['text'] for line in process.stdout.splitlines()] == [
        'a [MASK]', 'n\u00e9 [MASK]', 'none']
