"""Bad input to a tool ends it with status 2 and one line that names the fault."""

import pytest

from tests.abuse.commands import open_command
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

TINY = f'--config={ROOT}/configs/tiny_pretrain.py'
GLUE = f'--config={ROOT}/configs/glue.py'
VOCAB = f'--vocab_file={ROOT}/tests/fixtures/huggingface/pretraining/vocab.txt'
V5E = '--topology=v5e:4x4'


@pytest.mark.parametrize(('command', 'arguments', 'words'), [
    ('bench', ['--stpes=3'], 'stpes'),
    ('bench', ['--only=steps'], "did you mean 'step'?"),
    ('bench', ['--only=rows'], 'needs --text'),
    ('bench', ['base'], 'unrecognized arguments: base'),
    ('bench', ['--seq=16', '--predictions=15'], '--predictions=15'),
    ('bench', ['--model=bse'], "did you mean 'base'?"),
    ('bench', ['--only=store', '--text=/no/such/*.txt', VOCAB], '/no/such/*.txt'),
    ('preflight', [TINY, '--topology=v5e'], 'v5e:16x16'),
    ('preflight', [TINY, '--topology=v5e:32x32'], 'at most 16'),
    ('preflight', [TINY, '--topology=v4:4x4'], '3 dims'),
    ('preflight', [TINY, '--topolgy=v5e:4x4'], 'topolgy'),
    ('preflight', [TINY, V5E, '--config.train.batchsize=4'], "'train.batch_size'"),
    ('preflight', [TINY, V5E, "--config.train.steps='3 epochs'"], 'write steps'),
    ('preflight', [f'{GLUE}:rte', '--config.init_checkpoint=x', V5E], "'rte'"),
    ('prepare', [TINY, 'extra'], 'extra'),
    ('prepare', [TINY, '--config.data.source=/none.txt'], '/none.txt'),
    ('prepare', [f'{GLUE}:mrpc'], "'mrpc' reads its data at every start"),
    ('prepare', [TINY, '--config.task=synthetic'], "'synthetic' reads its data at every start"),
    ('paper', ['5', '--columns=mrcp'], '--columns=mrcp is unknown'),
    ('paper', ['5', '--pretrain', 'train.steps'], '--pretrain train.steps: write NAME=VALUE'),
    ('paper', ['5', '--pretrain', 'train.stepz=3'], 'train.stepz'),
    ('paper', ['5', '--seeds=0'], '--seeds=0'),
    ('paper', ['5', '--finetune', 'mprc:train.steps=7'], "=mprc is unknown: did you mean 'mrpc'?"),
    ('paper', ['5', '--weights', 'bse=x'], "at the scale tiny: --weights=bse is unknown"),
    ('paper', ['7', '--data=there'], '--data=there: there/conll2003 does not exist'),
    ('paper', ['5', '--data=there'], '--data=there: there/glue/MRPC does not exist'),
])
def test_bad_input_gets_one_line(command, arguments, words, tmp_path):
    answer = open_command((command, *arguments), tmp_path)
    assert answer.status == 2 and len(answer.err.splitlines()) == 1, answer.err
    assert answer.err.startswith('error: ') and words in answer.err
