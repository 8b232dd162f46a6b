"""Exports a model's computation as a file that other programs can run: StableHLO or ONNX.

Each file is compared with the model before it is kept.

    b: rows, s: tokens a row, p: masked positions a row, H: hidden_size, L: labels, V: vocabulary
"""

import contextlib
import dataclasses
import logging
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import export

from bert_jax.answers.engine import predicted_tokens
from bert_jax.heads import HEADS
from bert_jax.model.encoder import Bert
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError, needing
from bert_jax.runtime.files import Path, check_ends, check_new_file, open_whole
from bert_jax.sharding import Layout
from bert_jax.weights.parameters import to_tree

PLATFORMS = ('cpu', 'cuda', 'tpu')

Rows = Mapping[str, np.ndarray]
# The largest difference allowed between the file and the model, relative to the largest output if
# that is above 1: in float32 on CPUs, and wherever matrix products are rounded.
_ROUNDING = 1e-3
_COARSE = 0.1


@dataclasses.dataclass(frozen=True)
class _Computation:
    """The computation that is exported.

    Attributes:
      forward: computes outputs by name from parameters and inputs.
      params: by our names.
      inputs: symbolic shapes and dtypes of the inputs by name.
    """

    forward: Any
    params: Rows
    inputs: Mapping[str, jax.ShapeDtypeStruct]

    def output_shapes(self) -> dict[str, Any]:
        """Symbolic shapes and dtypes of the outputs by name."""
        return jax.eval_shape(self.forward, self.params, *self.inputs.values())

    def run(self, rows: Rows) -> dict[str, np.ndarray]:
        """Outputs of some rows."""
        return jax.device_get(jax.jit(self.forward)(self.params, *rows.values()))


class _Comparison:
    """Compares the outputs of a written file with the model's, on the same rows.

    Attributes:
      rows: inputs by name, in the order of the computation's.
      largest_difference: of any output, among those compared so far.
    """

    def __init__(self, rows: Rows, mask: np.ndarray, expected: Rows, rounding: float):
        """Takes the outputs of the model.

        Args:
          rows: inputs.
          mask: [rows, tokens], which tokens are no padding; the outputs of padding do not count.
          expected: the model's outputs.
          rounding: the largest relative difference allowed.
        """
        self.rows = rows
        self.largest_difference = 0.0
        self._mask = mask
        self._expected = expected
        self._rounding = rounding

    def check(self, outputs: Rows) -> None:
        """Raises InputError if outputs of a file differ from the model's."""
        for name, x in outputs.items():
            real: Any = self._mask if x.shape[:2] == self._mask.shape else ...
            difference = float(np.abs(x - self._expected[name])[real].max())
            limit = self._rounding * max(1.0, float(np.abs(x)[real].max()))
            if not difference <= limit:
                raise InputError(f'the file gives other {name} than the model, by up to '
                                 f'{difference:.3g}, and is not kept: try another format with --to')
            self.largest_difference = max(self.largest_difference, difference)


def _write_stablehlo(
    computation: _Computation, output: Path, comparison: _Comparison
) -> dict[str, Any]:
    """Writes a file that JAX can run without this package, and beside it the parameters as .npz.

    The parameters are not in the file: as constants of the program, hundreds of megabytes would be
    compiled into it again for each shape that it is called with.
    """
    params_file = output.with_suffix('.npz')
    if params_file == output:
        raise InputError(f'--output={output} is the name of the parameters: end it in .stablehlo')
    params = dict(computation.params)
    if not _holds(params_file, params):  # else they are those of an export that was killed
        check_new_file(params_file, '--output, for its parameters')
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    jitted = jax.jit(computation.forward)
    exported = export.export(jitted, platforms=PLATFORMS)(shapes, *computation.inputs.values())
    with open_whole(output) as file, open_whole(params_file) as arrays:
        file.write(exported.serialize())
        np.savez(arrays, **params)  # type: ignore[arg-type]
        file.flush()
        arrays.flush()
        read = export.deserialize(bytearray(Path(file.name).read_bytes()))
        params_read = dict(np.load(arrays.name))
        outputs = jax.jit(read.call)(params_read, *comparison.rows.values())
        comparison.check(jax.device_get(outputs))
    return {'params': str(params_file), 'platforms': list(PLATFORMS)}


# The errors of numpy for a file of arrays that is missing, damaged or something else.
_OTHER_FILE = (OSError, ValueError, TypeError, AttributeError, KeyError, EOFError, zlib.error,
               zipfile.BadZipFile)


def _holds(file: Path, params: Mapping[str, Any]) -> bool:
    """Whether a file holds these very parameters and nothing else."""
    check_ends(str(file))
    with contextlib.suppress(*_OTHER_FILE), np.load(file, allow_pickle=False) as held:
        if isinstance(held, Mapping) and held.keys() == params.keys():
            return all(np.array_equal(held[name], params[name]) for name in params)
    return False


def _write_onnx(
    computation: _Computation, output: Path, comparison: _Comparison, opset: int
) -> dict[str, Any]:
    """Writes a file with the parameters in it, for ONNX Runtime and the like."""
    for package in ('jax2onnx', 'onnx_ir'):  # they warn about parts that are not used here
        logging.getLogger(package).setLevel(logging.ERROR)
    import jax2onnx
    import onnxruntime

    outputs = computation.output_shapes()
    names = list(outputs)
    constants = jax.tree.map(jnp.asarray, dict(computation.params))

    def forward(*rows: jax.Array) -> tuple[jax.Array, ...]:
        by_name = computation.forward(constants, *rows)
        return tuple(by_name[name] for name in names)

    inputs: list[Any] = [
        jax.ShapeDtypeStruct(tuple(map(str, x.shape)), x.dtype)  # type: ignore[arg-type]
        for x in computation.inputs.values()]
    model = jax2onnx.to_onnx(
        forward, inputs, input_names=list(computation.inputs), output_names=names, opset=opset)
    _name_dims(model.graph, outputs.values())
    _take_int64(model.graph)
    with open_whole(output) as file:
        file.write(model.SerializeToString())
        file.flush()
        session = onnxruntime.InferenceSession(file.name, providers=['CPUExecutionProvider'])
        rows = {name: x.astype(np.int64) for name, x in comparison.rows.items()}
        comparison.check(dict(zip(names, session.run(names, rows), strict=True)))
    return {'opset': model.opset_import[0].version}


def _name_dims(graph: Any, outputs: Iterable[Any]) -> None:
    """Gives the symbolic dims of an ONNX graph's outputs their names."""
    for value, x in zip(graph.output, outputs, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, x.shape, strict=True):
            if not isinstance(size, int):
                dim.dim_param = str(size)


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
    model.require('export')
    if to == 'onnx' and model.config.dtype != 'float32':
        raise InputError(f'--to onnx is in float32: leave out --dtype={model.config.dtype}')
    _note_missing_head(model)
    inputs = _input_shapes(model, to)
    computation = _Computation(_forward(model), flatten_dict(model.params, sep='/'), inputs)
    comparison = _comparison(model, computation)
    with needing(f'export --to {to}', extra='onnx' if to == 'onnx' else ''):
        if to == 'onnx':
            described = _write_onnx(computation, output, comparison, opset)
        else:
            described = _write_stablehlo(computation, output, comparison)
    input_types = _described(inputs)
    if to == 'onnx':
        input_types = {name: x.replace('int32', 'int64') for name, x in input_types.items()}
    return {
        'output': str(output),
        **described,
        'inputs': input_types,
        'outputs': _described(computation.output_shapes()),
        'largest_difference': comparison.largest_difference,
    }


def _note_missing_head(model: LoadedModel) -> None:
    """Notes that a model of pre-training has no trained next-sentence head, if that is so."""
    has = model.weights.has
    is_pretrained = has('cls/predictions') and has('bert/pooler')
    if is_pretrained and not has('cls/seq_relationship'):
        model.pass_on('no next_sentence_logits are exported: the model has no trained '
                      'next-sentence head')


def _input_shapes(model: LoadedModel, to: str) -> dict[str, jax.ShapeDtypeStruct]:
    """The inputs by the names of a format, with symbolic shapes."""
    if to == 'onnx':
        names = ['input_ids', 'attention_mask', 'token_type_ids']
    else:
        names = ['input_ids', 'input_mask', 'segment_ids']
    dims = dict.fromkeys(names, 'b, s')
    if model.weights.has('cls/predictions'):
        dims['masked_lm_positions'] = 'b, p'
    scope = export.SymbolicScope([f's <= {model.max_length}'])
    return {
        name: jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), jnp.int32)
        for name, shape in dims.items()}


def _comparison(model: LoadedModel, computation: _Computation) -> _Comparison:
    """The comparison on rows of random tokens, of three lengths, in two segments each."""
    lengths = np.minimum((16, 5, 11), model.max_length)[:, None]
    places = np.arange(lengths.max())
    mask = places < lengths
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, mask.shape, np.int32)
    input_ids = np.where(mask, ids, 0)
    segment_ids = mask & (places > lengths // 2)
    positions = np.ones((len(mask), 1))
    # Without a masked-LM head, there is no input for the positions.
    arrays = zip(computation.inputs, (input_ids, mask, segment_ids, positions), strict=False)
    rows = {name: x.astype(np.int32) for name, x in arrays}
    is_exact = model.config.dtype == 'float32' and model.config.layout.on_cpu
    return _Comparison(rows, mask, computation.run(rows), _ROUNDING if is_exact else _COARSE)


def _described(shapes: Mapping[str, Any]) -> dict[str, str]:
    """Types and shapes by name, such as 'int32[b, s]'."""
    return {name: f'{x.dtype}{list(x.shape)}' for name, x in shapes.items()}


def _forward(model: LoadedModel) -> Any:
    """The forward pass, for any platform and one device."""
    config = dataclasses.replace(model.config, attention='xla', layout=Layout())
    # {}: only taggers on features of a frozen encoder need inference settings; none is exported.
    head = HEADS[model.weights.head].of_model(config, model.weights.num_labels, {})
    # Without parameters, a pooler hands on what the head reads.
    pooled = model.weights.has('bert/pooler') or (head.needs_pooler and not config.pooler)

    def forward(flat, input_ids, input_mask, segment_ids, positions=None):  # type: ignore[no-untyped-def]
        params = to_tree(flat, None)
        # Position ids are looked up: not every format can express the first s rows of a table.
        position_ids = jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
        out: Any = Bert(config, pooled=pooled).apply(
            {'params': params['bert']}, input_ids, input_mask, segment_ids, None, position_ids)
        x = out['sequence_output']
        pooled_BxH = out['pooled_output']

        outputs = {'sequence_output': x.astype(jnp.float32)}
        if pooled_BxH is not None:
            outputs['pooled_output'] = pooled_BxH.astype(jnp.float32)
        if positions is not None:
            at = jnp.take_along_axis(x, positions[..., None], axis=1)
            logits = predicted_tokens(config, params, at)
            outputs['masked_lm_logits'] = logits[..., : config.vocab_size]
        return outputs | head.outputs_from_hidden(params, x, pooled_BxH)

    return forward
