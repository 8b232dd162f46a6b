"""The command `convert`, as a user runs it."""

import numpy as np
import pytest

from bert_jax.convert import main
from bert_jax.runtime.files import as_path, write_whole
from bert_jax.weights import load_weights
from tests.conftest import RECORDED, run_python

WITHOUT_TENSORFLOW = """
import sys
sys.modules['tensorflow'] = None  # importing it fails
from bert_jax.convert import main
main(sys.argv[1:])
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
    def convert(source, target, form):
        return run_python('-c', WITHOUT_TENSORFLOW, source, target, '--to', form, XLA_FLAGS='')

    published, ours = RECORDED / 'pretraining', tmp_path / 'run'
    for source, target, form in ((published, ours, 'bert_jax'),
                                 (ours, tmp_path / 'hf', 'huggingface')):
        process = convert(source, target, form)
        assert process.returncode == 0, process.stderr
    assert (tmp_path / 'hf' / 'model.safetensors').exists()
    process = convert(published, tmp_path / 'tf1', 'tf1')
    assert process.returncode == 2 and process.stderr.count('\n') == 1
    assert process.stderr.startswith('error: writing a TF1 checkpoint needs tensorflow')
