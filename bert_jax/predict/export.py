"""The computation as a StableHLO file that JAX alone can run (`jax.export`)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jax import export

from bert_jax.errors import InputError
from bert_jax.files import Path, open_whole
from bert_jax.heads import CLASSIFIER, HEADS, SPAN
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.task_heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_jax.predict import functions
from bert_jax.predict.loaded import LoadedModel
from bert_jax.sharding import Layout
from bert_jax.weights.names import to_tree

PLATFORMS = ('cpu', 'cuda', 'tpu')


def export_model(model: LoadedModel, output: Path) -> dict[str, Any]:
    """Writes the computation to `output` and the parameters beside it, as .npz.

    The exported function takes (params, input_ids, input_mask, segment_ids) and, where there is a
    masked-LM head, masked_lm_positions; all int32 [b, s], the last [b, p], with any b, p and any s
    that the model has positions for. It returns a dict of `sequence_output` [b, s, H],
    `pooled_output` [b, H] where there is a pooler, and the logits of the head.

    Parameters are not in the file: as constants of the program they would be compiled into it
    anew, hundreds of megabytes, for each shape that it is called with.

    Returns:
      {'output', 'params', 'inputs', 'outputs'}: the two files and shapes by name.

    Raises:
      InputError: a file cannot be written.
    """
    try:
        import flatbuffers  # noqa: F401  (jax.export writes and reads files with it)
    except ImportError:
        raise InputError('export needs flatbuffers: pip install flatbuffers') from None
    params_file = output.with_suffix('.npz')
    if params_file == output:
        raise InputError(f'--output={output} is what the parameters go to: end it in .stablehlo')
    b, s, p = export.symbolic_shape('b, s, p', constraints=[f's <= {model.max_length}'])
    rows = {name: (b, s) for name in ('input_ids', 'input_mask', 'segment_ids')}
    if model.weights.has('cls/predictions'):
        rows['masked_lm_positions'] = (b, p)
    flat = flatten_dict(model.params, sep='/')
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in flat.items()}
    exported = export.export(jax.jit(_forward(model)), platforms=PLATFORMS)(
        shapes, *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in rows.values())
    )
    _write(output, lambda file: file.write(exported.serialize()))
    _write(params_file, lambda file: np.savez(file, **flat))
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    return {
        'output': str(output), 'params': str(params_file), 'platforms': list(PLATFORMS),
        'inputs': {name: f'int32{list(shape)}' for name, shape in rows.items()},
        'outputs': {name: f'{x.dtype}{list(x.shape)}' for name, x in outputs.items()},
    }


def _forward(model: LoadedModel) -> Any:
    has, head = model.weights.has, HEADS[model.weights.head]
    # For any platform and one device: nothing that this one alone has.
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    pretraining = functions.Pretraining(config)
    pooled_head = BertForSequenceClassification(config, model.weights.num_labels)
    token_head = BertForTokenClassification(config, model.weights.num_labels)

    def forward(flat, input_ids, input_mask, segment_ids, positions=None):  # type: ignore[no-untyped-def]
        params = to_tree(flat, padded_vocab_size=None, scan_layers=False)
        bert = Bert(config, pooled=has('bert/pooler'))
        out: Any = bert.apply({'params': params['bert']}, input_ids, input_mask, segment_ids)
        x, pooled = out['sequence_output'], out['pooled_output']

        def layer(module: nn.Module, compute: Any, *inputs: jax.Array) -> Any:
            """What a layer of a head's own module gives."""
            return nn.apply(compute, module)({'params': params}, *inputs).astype(jnp.float32)

        outputs = {'sequence_output': x.astype(jnp.float32)}
        if pooled is not None:
            outputs['pooled_output'] = pooled.astype(jnp.float32)
        if positions is not None:
            at = gather_positions(x, positions)
            logits = layer(pretraining, functions.Pretraining.predict, at)
            outputs['masked_lm_logits'] = logits[..., : config.vocab_size]
        if has('cls/seq_relationship') and pooled is not None:
            outputs['next_sentence_logits'] = layer(
                pretraining, lambda module, x: module.cls.seq_relationship(x), pooled)
        elif head.own == (SPAN,):
            outputs['logits'] = layer(
                BertForQuestionAnswering(config), lambda module, x: module.cls(x), x)
        elif head.own == (CLASSIFIER,):
            outputs['logits'] = layer(
                pooled_head if head.pooled else token_head, lambda module, x: module.classifier(x),
                pooled if head.pooled else x)
        return outputs

    return forward


def _write(path: Path, write: Any) -> None:
    try:
        with open_whole(path) as file:
            write(file)
    except OSError as error:
        raise InputError(f'{path} cannot be written ({error.strerror or error})') from error
