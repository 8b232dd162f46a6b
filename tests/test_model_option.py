"""CONTRIBUTING's recipe for a model option, followed: a causal mask, in a copy of the package."""

import os
import shutil
import subprocess
import sys

from tests.conftest import ROOT

# File -> (a line, what is written before it).
RECIPE = {
    'bert_config.py': (
        '    # Truncated normal, cut', """\
    causal: bool = field(default=False, metadata=_is('computes', (False, True), None, None))
"""),
    'model/attention.py': (
        '    bias_Bx1xQxK = ', """\
    if config.causal:
        places_S = jnp.arange(segments_BxS.shape[1])
        queries_BxQ = places_S[None] if wanted_BxP is None else wanted_BxP
        seen_BxQxK &= queries_BxQ[:, :, None] >= places_S
"""),
}
USE = """
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
import bert_jax.bert_config as bert_config
from bert_jax.config import complete, default_config, model_fields
from bert_jax.errors import InputError
from bert_jax.model.attention import attend
from bert_jax.model.layers import ModelConfig
from bert_jax.weights.model_fields import read_model, write_model

assert bert_config.__file__.startswith(sys.argv[1])
config = default_config()
config.model.name = 'tiny'
config.model.causal = True
model = model_fields(complete(config), 40)
said, _ = write_model(model, 'bert_jax', 'a run')
assert read_model(said, 'bert_jax', Path('config.json')) == model and model['causal'] is True
for form in ('huggingface', 'tf1'):
    try:
        write_model(model, form, 'a run')
    except InputError as error:
        print(error)
qkv, zeros = jax.random.normal(jax.random.key(0), (1, 6, 3, 2, 64)), jnp.zeros((3, 2, 64))
at = [[4, 1]]
for causal in (True, False):
    c = ModelConfig(**model | {'causal': causal})
    ones, other = jnp.ones((1, 6), int), qkv.at[:, 4:].add(1)
    a, b = (attend(x, zeros, ones, None, 0, config=c) for x in (qkv, other))
    print([bool((a[0, i] == b[0, i]).all()) for i in range(6)])
    few = attend(qkv, zeros, ones, None, 0, config=c, wanted_BxP=jnp.array(at))
    assert jnp.allclose(few[0], a[0, jnp.array(at[0])], atol=1e-6)
"""


def test_a_causal_mask_is_two_files(tmp_path):
    shutil.copytree(ROOT / 'bert_jax', tmp_path / 'bert_jax',
                    ignore=shutil.ignore_patterns('__pycache__'))
    for name, (line, before) in RECIPE.items():
        file = tmp_path / 'bert_jax' / name
        text = file.read_text()
        assert text.count(line) == 1
        file.write_text(text.replace(line, before + line))
    process = subprocess.run(
        [sys.executable, '-c', USE, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, env=os.environ | {'PYTHONPATH': str(tmp_path), 'XLA_FLAGS': '',
                                       'JAX_PLATFORMS': 'cpu'},
    )
    assert process.returncode == 0, process.stderr
    hugging_face, tf1, *seen = process.stdout.splitlines()
    assert "a run has causal=True, which a Hugging Face folder's config.json cannot" in hugging_face
    assert 'a run has causal=True, which a bert_config.json cannot say' in tf1
    assert seen == ['[True, True, True, True, False, False]', str([False] * 6)]
