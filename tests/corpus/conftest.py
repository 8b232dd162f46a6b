"""The first tests that need TensorFlow: it is imported as the package does, without Keras."""

import contextlib
import importlib

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.packages import loading_tensorflow

with contextlib.suppress(InputError), loading_tensorflow('reading text'):
    importlib.import_module('bert_jax.corpus.tokenize_tensorflow')
