"""tools.prepare: what it makes in a bucket is found on another machine."""

import re
import subprocess

import pytest

pytest.importorskip('tensorflow_text')

from bert_jax.corpus import sharing, store_building, tokenize
from bert_jax.tools import prepare
from tests.conftest import ROOT
from tests.corpus.test_store_building import _random_texts, content
from tests.programs import python

TINY = f'--config={ROOT}/configs/tiny_pretrain.py'


def test_another_machine_finds_what_was_prepared(tmp_path, bucket, capsys, monkeypatch):
    for name, seed in (('a', 0), ('b', 1)):
        (tmp_path / f'{name}.txt').write_text('\n\n'.join(_random_texts(20, seed)))
    arguments = [
        'prepare', TINY, f'--config.data.source={tmp_path}/a.txt',
        f'--config.data.eval_source={tmp_path}/b.txt', '--config.data.vocab_size=200',
        f'--config.data.dir={bucket}/data',
    ]
    prepare.main([*arguments, f'--config.data.local_dir={tmp_path}/here'])
    out = capsys.readouterr().out
    stores = re.findall(r'(gs://\S+/stores/\w+)\n', out)
    assert len(stores) == 2
    # On another machine nothing is built or trained.
    monkeypatch.setattr(
        sharing, '_trained_vocabulary', lambda *_: pytest.fail('trained again'))
    prepare.main([*arguments, f'--config.data.local_dir={tmp_path}/there'])
    again = capsys.readouterr()
    assert re.findall(r'(gs://\S+/stores/\w+)\n', again.out) == stores
    assert 'copied' in again.err and 'sentences' not in again.err


def test_shares_and_the_last_step_give_the_bytes_of_one_command(tmp_path, capsys, monkeypatch):
    # Starts quicker, and gives the same ids (see tests/corpus/test_tokenize_plain.py).
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    for number in range(5):
        (tmp_path / f'{number}.txt').write_text('\n\n'.join(_random_texts(20, number)))
    command = ['prepare', TINY, f'--config.data.source={tmp_path}/?.txt',
               f'--config.data.eval_source={tmp_path}/4.txt', '--config.data.vocab_size=200']
    apart = [*command, f'--config.data.dir={tmp_path}/apart']
    with pytest.raises(SystemExit) as ended:
        prepare.main([*apart, '--finish'])
    assert ended.value.code == 2
    assert '5 of 5 shares are not done (number 0, 1, 2, 3, 4)' in capsys.readouterr().err
    for number in (2, 0, 1):
        prepare.main([*apart, f'--share={number}/3'])
    assert 'share=1/3: done' in capsys.readouterr().out
    assert not list((tmp_path / 'apart').glob('stores/*/manifest.json'))
    prepare.main([*apart, '--finish'])
    prepare.main([*command, f'--config.data.dir={tmp_path}/alone'])
    contents = []
    for folder in ('apart', 'alone'):
        stores = sorted((tmp_path / folder / 'stores').iterdir())
        assert len(stores) == 2
        contents.append([(store.name, content(store)) for store in stores])
    assert contents[0] == contents[1]


@pytest.mark.parametrize(('flags', 'said'), [
    (['--share=3/3'], '--share=3/3: give I/N'),
    (['--share=1'], '--share=1: give I/N'),
    (['--share=0/2', '--finish'], 'give --finish alone'),
    (['--finish', '--', '--runner=DirectRunner'], 'leave out --share and --finish'),
])
def test_a_wrong_way_to_divide_the_work_is_refused(tmp_path, capsys, flags, said):
    with pytest.raises(SystemExit) as ended:
        prepare.main(['prepare', TINY, f'--config.data.dir={tmp_path}', *flags])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_commands_at_the_same_time_make_one_store(tmp_path):
    (tmp_path / 'a.txt').write_text('\n\n'.join(_random_texts(200)))
    command = [
        *python(), '-m', 'bert_jax.tools.prepare', TINY,
        f'--config.data.source={tmp_path}/a.txt', '--config.data.vocab_size=200',
        f'--config.data.dir={tmp_path}/data']
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=900)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    lines = [re.findall('.*/stores/.*', text) for text in said]
    assert lines[0] == lines[1]
    assert re.search(
        r'200 documents \(0 duplicates left out\), [\d,]+ sentences and 1 block, ', lines[0][0])
    assert '% of the tokens are [UNK]\n' in said[0]
    assert len(list((tmp_path / 'data' / 'stores').iterdir())) == 1
