"""tools.prepare: what it makes in a bucket is found on another machine."""

import re
import subprocess

import pytest

pytest.importorskip('tensorflow_text')

from bert_jax.corpus import sharing
from bert_jax.tools import prepare
from tests.conftest import ROOT
from tests.corpus.test_store_building import _random_texts
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
