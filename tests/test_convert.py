"""The command `convert`, as a user runs it."""

import numpy as np
import pytest

from bert_jax.convert import main
from bert_jax.foreign import load_weights
from bert_jax.runtime.files import as_path, write_whole
from tests.conftest import RECORDED
from tests.programs import run_program

WITHOUT_TENSORFLOW = """
import sys
sys.modules['tensorflow'] = None  # importing it fails
from bert_jax.convert import main
published, ours, huggingface, tf1 = sys.argv[1:]
main([published, ours, '--to', 'bert_jax'])
main([ours, huggingface, '--to', 'huggingface'])
main([published, tf1, '--to', 'tf1'])
"""


@pytest.mark.parametrize('form', ['huggingface', 'tf1', 'bert_jax'])
def test_there_and_back_in_a_bucket(form, bucket, capsys):
    if form == 'tf1':
        pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
    wanted = load_weights(RECORDED / 'token_classification')
    source, target = as_path(bucket) / 'published', f'{bucket}/models/out'
    source.mkdir()
    for path in (RECORDED / 'token_classification').iterdir():
        write_whole(source / path.name, path.read_bytes())
    main([str(source), target, '--to', form])
    printed = capsys.readouterr().out.splitlines()
    assert '  head: token_classification (O, B-PER, I-PER, B-LOC, I-LOC)' in printed
    assert any(line.startswith('note: ') for line in printed) == (form == 'tf1')  # about its gelu
    found = load_weights(target)
    assert str(found.vocab_file).startswith(target) and found.labels == wanted.labels
    for name, x in wanted.params.items():
        np.testing.assert_array_equal(found.params[name], x, err_msg=name)
    with pytest.raises(SystemExit, match='2'):
        main([str(source), target, '--to', form])
    assert 'is there already' in capsys.readouterr().err


def test_without_tensorflow(tmp_path):
    """Only TF1 checkpoints need it."""
    process = run_program(
        '-c', WITHOUT_TENSORFLOW, RECORDED / 'pretraining', tmp_path / 'run', tmp_path / 'hf',
        tmp_path / 'tf1', XLA_FLAGS='')
    assert (tmp_path / 'hf' / 'model.safetensors').exists(), process.stderr
    assert process.returncode == 2 and process.stderr.count('\n') == 1
    assert process.stderr.startswith('error: writing a TF1 checkpoint needs tensorflow')
