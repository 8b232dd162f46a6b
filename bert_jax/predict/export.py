"""Exports a model's computation as a file that other programs can run: StableHLO or ONNX.

Each file is compared with the model before it is kept.

    b: rows, s: tokens a row, p: masked positions a row, H: hidden_size, L: labels, V: vocabulary
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import export

from bert_jax.heads import HEADS
from bert_jax.inference.engine import predicted_tokens
from bert_jax.model.encoder import Bert
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError, needing
from bert_jax.runtime.files import Path, check_new_file, open_whole
from bert_jax.sharding import Layout
from bert_jax.weights.formats import to_tree

PLATFORMS = ('cpu', 'cuda', 'tpu')

Rows = Mapping[str, np.ndarray]
# Compares a written file, given as a function from inputs to outputs, with the model.
Compare = Callable[[Callable[[Rows], dict[str, np.ndarray]]], None]


def _stablehlo(
    forward: Any, params: Rows, inputs: Mapping[str, Any], output: Path, compare: Compare
) -> dict[str, Any]:
    """Writes a file that JAX can run without this package, and beside it the parameters as .npz.

    The parameters are not in the file: as constants of the program, hundreds of megabytes would be
    compiled into it again for each shape that it is called with.
    """
    params_file = output.with_suffix('.npz')
    if params_file == output:
        raise InputError(f'--output={output} is the name of the parameters: end it in .stablehlo')
    check_new_file(params_file, '--output, for its parameters')
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), dict(params))
    exported = export.export(jax.jit(forward), platforms=PLATFORMS)(shapes, *inputs.values())
    with open_whole(output) as file, open_whole(params_file) as arrays:
        file.write(exported.serialize())
        np.savez(arrays, **dict(params))  # type: ignore[arg-type]
        file.flush()
        arrays.flush()
        call = jax.jit(export.deserialize(bytearray(Path(file.name).read_bytes())).call)
        params_read = dict(np.load(arrays.name))
        compare(lambda rows: jax.device_get(call(params_read, *rows.values())))
    return {'params': str(params_file), 'platforms': list(PLATFORMS)}


def _onnx(
    forward: Any, params: Rows, inputs: Mapping[str, Any], output: Path, compare: Compare,
    opset: int,
) -> dict[str, Any]:
    """Writes a file with the parameters in it, for ONNX Runtime and the like."""
    for name in ('jax2onnx', 'onnx_ir'):  # they warn about parts that are not used here
        logging.getLogger(name).setLevel(logging.ERROR)
    import jax2onnx
    import onnxruntime

    outputs = jax.eval_shape(forward, params, *inputs.values())
    names, constants = list(outputs), jax.tree.map(jnp.asarray, dict(params))
    model = jax2onnx.to_onnx(
        lambda *rows: tuple(forward(constants, *rows)[name] for name in names),
        [jax.ShapeDtypeStruct(tuple(map(str, x.shape)), x.dtype)  # type: ignore[arg-type]
         for x in inputs.values()],
        input_names=list(inputs), output_names=names, opset=opset)
    for value, x in zip(model.graph.output, outputs.values(), strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, x.shape, strict=True):
            if not isinstance(size, int):
                dim.dim_param = str(size)
    _take_int64(model.graph)
    with open_whole(output) as file:
        file.write(model.SerializeToString())
        file.flush()
        session = onnxruntime.InferenceSession(file.name, providers=['CPUExecutionProvider'])
        compare(lambda rows: dict(zip(names, session.run(
            names, {name: x.astype(np.int64) for name, x in rows.items()}), strict=True)))
    return {'opset': model.opset_import[0].version}


def _take_int64(graph: Any) -> None:
    """Makes the inputs of an ONNX graph int64, as tokenizers give them; they are cast at once."""
    import onnx

    inputs = {value.name: f'{value.name}_int32' for value in graph.input}

    def rename(nodes: Any) -> None:
        for node in nodes:
            node.input[:] = [inputs.get(name, name) for name in node.input]
            for attribute in node.attribute:
                for inner in (attribute.g, *attribute.graphs):
                    rename(inner.node)

    rename(graph.node)
    for i, value in enumerate(graph.input):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT64
        graph.node.insert(i, onnx.helper.make_node(
            'Cast', [value.name], [inputs[value.name]], to=onnx.TensorProto.INT32))


# The largest difference allowed between the file and the model, relative to the largest output if
# that is above 1: in float32 on CPUs, and wherever matrix products are rounded.
_ROUNDING, _COARSE = 1e-3, 0.1


def export_model(
    model: LoadedModel, output: Path, to: str = 'stablehlo', opset: int = 23
) -> dict[str, Any]:
    """Writes the computation, runs the file and compares its outputs with the model's.

    The inputs are input_ids, input_mask, segment_ids (for ONNX with Hugging Face's names,
    input_ids, attention_mask, token_type_ids) and, with a masked-LM head, masked_lm_positions. All
    are int32 (of ONNX files int64, as tokenizers give them) [b, s], the last [b, p], for any b and
    p and any s up to the model's `max_length`. The outputs, by name and in float32, are
    `sequence_output` [b, s, H], `pooled_output` [b, H] if there is a pooler, and the head's:
    `logits` [b, L] per row or [b, s, L] per token, `start_logits` and `end_logits` [b, s],
    `masked_lm_logits` [b, p, V], `next_sentence_logits` [b, 2].

    Args:
      model: one that serves `export`.
      output: the file.
      to: 'stablehlo' or 'onnx'.
      opset: version of ONNX's operators; below 20 it has no gelu.

    Returns:
      {'output', 'inputs', 'outputs', 'largest_difference'} and what the format adds.

    Raises:
      InputError: the model cannot be exported, the file cannot be written, a package is not
        installed, or the outputs differ from the model's. Then no file is left.
    """
    model.need('export')
    if to == 'onnx' and model.config.dtype != 'float32':
        raise InputError(f'--to onnx is in float32: leave out --dtype={model.config.dtype}')
    names = ('attention_mask', 'token_type_ids') if to == 'onnx' else ('input_mask', 'segment_ids')
    dims = dict.fromkeys(('input_ids', *names), 'b, s')
    if model.weights.has('cls/predictions'):
        dims['masked_lm_positions'] = 'b, p'
    symbols = export.SymbolicScope([f's <= {model.max_length}'])
    inputs = {name: jax.ShapeDtypeStruct(export.symbolic_shape(x, scope=symbols), jnp.int32)
              for name, x in dims.items()}
    # Rows of random tokens, of three lengths, in two segments each.
    lengths = np.minimum((16, 5, 11), model.max_length)[:, None]
    places = np.arange(lengths.max())
    mask = places < lengths
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, mask.shape, np.int32)
    made = (np.where(mask, ids, 0), mask, mask & (places > lengths // 2), np.ones((len(mask), 1)))
    rows = {name: x.astype(np.int32) for name, x in zip(inputs, made)}
    has, is_pretrained = model.weights.has, model.weights.head == 'pretraining'
    if is_pretrained and has('bert/pooler') and not has('cls/seq_relationship'):
        model.note('no next_sentence_logits are exported: the model has no trained next-sentence '
                   'head')
    forward, params = _forward(model), flatten_dict(model.params, sep='/')
    expected = jax.device_get(jax.jit(forward)(params, *rows.values()))
    is_exact = model.config.dtype == 'float32' and model.config.layout.on_cpu
    largest: list[float] = []

    def compare(call: Callable[[Rows], dict[str, np.ndarray]]) -> None:
        for name, x in call(rows).items():
            real: Any = mask if x.shape[:2] == mask.shape else ...
            difference = float(np.abs(x - expected[name])[real].max())
            limit = (_ROUNDING if is_exact else _COARSE) * max(1.0, float(np.abs(x)[real].max()))
            if not difference <= limit:
                raise InputError(f'the file gives other {name} than the model, by up to '
                                 f'{difference:.3g}, and is not kept: try another format with --to')
            largest.append(difference)

    with needing(f'export --to {to}'):
        described = (_stablehlo if to == 'stablehlo' else functools.partial(_onnx, opset=opset))(
            forward, params, inputs, output, compare)
    shapes = [{name: f'{x.dtype}{list(x.shape)}' for name, x in some.items()}
              for some in (inputs, jax.eval_shape(forward, params, *inputs.values()))]
    if to == 'onnx':
        shapes[0] = {name: x.replace('int32', 'int64') for name, x in shapes[0].items()}
    return {'output': str(output), **described, 'inputs': shapes[0], 'outputs': shapes[1],
            'largest_difference': max(largest)}


def _forward(model: LoadedModel) -> Any:
    """The forward pass, for any platform and one device."""
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    # {}: only taggers on features of a frozen encoder need inference settings; none is exported.
    head = HEADS[model.weights.head].of_model(config, model.weights.num_labels, {})

    def forward(flat, input_ids, input_mask, segment_ids, positions=None):  # type: ignore[no-untyped-def]
        params = to_tree(flat, None)
        # Position ids are looked up: not every format can express the first s rows of a table.
        position_ids = jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
        out: Any = Bert(config, pooled=model.weights.has('bert/pooler')).apply(
            {'params': params['bert']}, input_ids, input_mask, segment_ids, None, position_ids)
        x, pooled = out['sequence_output'], out['pooled_output']

        outputs = {'sequence_output': x.astype(jnp.float32)}
        if pooled is not None:
            outputs['pooled_output'] = pooled.astype(jnp.float32)
        if positions is not None:
            at = jnp.take_along_axis(x, positions[..., None], axis=1)
            logits = predicted_tokens(config, params, at)
            outputs['masked_lm_logits'] = logits[..., : config.vocab_size]
        return outputs | head.outputs_from_hidden(params, x, pooled)

    return forward
