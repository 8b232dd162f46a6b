"""The computation as a file that other programs run: StableHLO, TensorFlow's SavedModel, ONNX.

Each file is compared with the model before it is kept.

    b: rows, s: tokens a row, p: masked positions a row, H: hidden_size, L: labels, V: vocabulary
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jax import export

from bert_jax.heads import HEADS
from bert_jax.model.encoder import Bert
from bert_jax.predict.engine import Pretraining
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, check_new_file, open_whole
from bert_jax.runtime.process import loading_tensorflow
from bert_jax.train.sharding import Layout
from bert_jax.weights.formats import new_folder, to_tree

PLATFORMS = ('cpu', 'cuda', 'tpu')

Rows = Mapping[str, np.ndarray]
# Compares what was written, from its inputs to its outputs, with the model.
Compare = Callable[[Callable[[Rows], dict[str, np.ndarray]]], None]


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation to export.

    Attributes:
      function: of the parameters and the inputs, to outputs by name.
      params: by name.
      inputs: dims of each by its name, 'b, s'; all are int32.
      max_length: the largest s.
    """

    function: Callable[..., dict[str, jax.Array]]
    params: Mapping[str, np.ndarray]
    inputs: Mapping[str, str]
    max_length: int

    def shapes(self) -> list[Any]:
        """Shapes of parameters and inputs, in symbols."""
        scope = export.SymbolicScope([f's <= {self.max_length}'])
        return [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), dict(self.params)),
                *(jax.ShapeDtypeStruct(export.symbolic_shape(dims, scope=scope), jnp.int32)
                  for dims in self.inputs.values())]

    def outputs(self) -> dict[str, Any]:
        """Shapes of the outputs, in symbols."""
        return jax.eval_shape(self.function, *self.shapes())


def _stablehlo(c: Computation, output: Path, compare: Compare) -> dict[str, Any]:
    """A file that only JAX runs, and beside it the parameters as .npz.

    Parameters are not in the file: as constants of the program they would be compiled into it
    anew, hundreds of megabytes, for each shape that it is called with.
    """
    with _needing('export', 'flatbuffers'):  # jax.export writes and reads files with it
        import flatbuffers  # noqa: F401
    params_file = output.with_suffix('.npz')
    if params_file == output:
        raise InputError(f'--output={output} is the name of the parameters: end it in .stablehlo')
    check_new_file(params_file, '--output, for its parameters')
    exported = export.export(jax.jit(c.function), platforms=PLATFORMS)(*c.shapes())
    with open_whole(output) as file, open_whole(params_file) as params:
        file.write(exported.serialize())
        np.savez(params, **dict(c.params))  # type: ignore[arg-type]
        file.flush()
        params.flush()
        with open(file.name, 'rb') as written:
            call = jax.jit(export.deserialize(bytearray(written.read())).call)
        params_read = dict(np.load(params.name))
        compare(lambda rows: jax.device_get(call(params_read, *rows.values())))
    return {'params': str(params_file), 'platforms': list(PLATFORMS)}


def _saved_model(c: Computation, output: Path, compare: Compare) -> dict[str, Any]:
    """A folder with the signature `serving_default`, for TensorFlow only, on any platform."""
    with loading_tensorflow('export --to saved_model'):
        import tensorflow as tf
        from jax.experimental import jax2tf

    for device in ('GPU', 'TPU'):  # jax uses them
        tf.config.set_visible_devices([], device)
    converted = jax2tf.convert(
        c.function, polymorphic_shapes=[None, *(f'({dims})' for dims in c.inputs.values())],
        polymorphic_constraints=[f's <= {c.max_length}'], with_gradient=False,
        native_serialization_platforms=PLATFORMS)
    module = tf.Module()
    module.params = {
        name: tf.Variable(x, trainable=False, name=name) for name, x in c.params.items()}
    module.call = tf.function(
        lambda *rows: converted(module.params, *rows), autograph=False,
        input_signature=[tf.TensorSpec((None, None), tf.int32, name) for name in c.inputs])
    with new_folder(output) as folder:
        tf.saved_model.save(module, str(folder), signatures=module.call)
        signature = tf.saved_model.load(str(folder)).signatures['serving_default']
        try:
            compare(lambda rows: {name: x.numpy() for name, x in signature(
                **{name: tf.constant(x) for name, x in rows.items()}).items()})
        except tf.errors.InvalidArgumentError as error:
            raise InputError(
                f'TensorFlow {tf.__version__} cannot run what jax {jax.__version__} writes: '
                'install a newer TensorFlow or an older jax, or export --to onnx') from error
    return {'signature': 'serving_default', 'platforms': list(PLATFORMS)}


def _onnx(c: Computation, output: Path, compare: Compare) -> dict[str, Any]:
    """A file with the parameters in it, for ONNX Runtime and its like."""
    with _needing('export --to onnx', 'jax2onnx onnxruntime'):
        for name in ('jax2onnx', 'onnx_ir'):  # of parts that are not used here
            logging.getLogger(name).setLevel(logging.ERROR)
        import jax2onnx
        import onnxruntime

    shapes, params = c.outputs(), jax.tree.map(jnp.asarray, dict(c.params))
    names = list(shapes)
    model = jax2onnx.to_onnx(
        lambda *rows: tuple(c.function(params, *rows)[name] for name in names),
        [jax.ShapeDtypeStruct(tuple(dims.split(', ')), jnp.int32)  # type: ignore[arg-type]
         for dims in c.inputs.values()],
        input_names=list(c.inputs), output_names=names)
    for value, x in zip(model.graph.output, shapes.values(), strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, x.shape, strict=True):
            if not isinstance(size, int):
                dim.dim_param = str(size)
    with open_whole(output) as file:
        file.write(model.SerializeToString())
        file.flush()
        session = onnxruntime.InferenceSession(file.name, providers=['CPUExecutionProvider'])
        compare(lambda rows: dict(zip(names, session.run(names, dict(rows)), strict=True)))
    return {'opset': model.opset_import[0].version}


FORMATS: Mapping[str, Callable[[Computation, Path, Compare], dict[str, Any]]] = {
    'stablehlo': _stablehlo, 'saved_model': _saved_model, 'onnx': _onnx}


def plain_gelu_erf(x: jax.Array) -> jax.Array:
    """`gelu_erf` with an erf of plain operations, as XLA computes it.

    The operation erf, as jax writes it since 0.9, is newer than what TensorFlow 2.21 reads.
    """
    y = jnp.clip(x * math.sqrt(0.5), -3.7439211627767994, 3.7439211627767994)
    over = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861,
            0.18520832239976145, 1.128379143519084)
    under = (-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885,
             0.014070470171167667, 0.11098505178285362, 0.49746925110067538, 1.0)
    erf = y * jnp.polyval(jnp.array(over), y * y) / jnp.polyval(jnp.array(under), y * y)
    return x * 0.5 * (1.0 + erf)


@contextlib.contextmanager
def _needing(purpose: str, packages: str) -> Iterator[None]:
    """For imports that an export needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f'{purpose} needs {error.name}, which is not installed: python -m pip '
                         f'install {packages}') from None


# The largest difference between two ways to compute the same: on CPUs in float32, and wherever
# products are rounded.
_ROUNDING, _COARSE = 1e-3, 0.1


def export_model(model: LoadedModel, output: Path, to: str = 'stablehlo') -> dict[str, Any]:
    """Writes the computation, runs the file and compares its outputs with the model's.

    It takes input_ids, input_mask, segment_ids and, where there is a masked-LM head,
    masked_lm_positions; all int32 [b, s], the last [b, p], with any b, p and any s that the model
    has positions for. It gives by name `sequence_output` [b, s, H], `pooled_output` [b, H] where
    there is a pooler, and what the head gives, in float32: `logits` [b, L] a row or [b, s, L] a
    token, `start_logits` and `end_logits` [b, s], `masked_lm_logits` [b, p, V],
    `next_sentence_logits` [b, 2].

    Args:
      model: of any head.
      output: the file, or of a SavedModel the folder.
      to: one of FORMATS.

    Returns:
      {'output', 'inputs', 'outputs', 'largest_difference'} and what the format adds.

    Raises:
      InputError: it cannot be written, a package is not installed, or the outputs differ from the
        model's. Then no file is left.
    """
    model.need('export')
    if to != 'stablehlo' and model.config.dtype != 'float32':
        raise InputError(f'--to {to} is in float32: leave out --dtype={model.config.dtype}')
    inputs = dict.fromkeys(('input_ids', 'input_mask', 'segment_ids'), 'b, s')
    if model.weights.has('cls/predictions'):
        inputs['masked_lm_positions'] = 'b, p'
    params = flatten_dict(model.params, sep='/')
    plain = to == 'saved_model' and model.config.hidden_act == 'gelu_erf'
    written = _forward(model, {'hidden_act': plain_gelu_erf} if plain else {})
    computation = Computation(written, params, inputs, model.max_length)
    # Rows of random tokens, of three lengths, in two segments each.
    lengths = np.minimum((16, 5, 11), model.max_length)[:, None]
    places = np.arange(lengths.max())
    size = (len(lengths), len(places))
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, size, np.int32)
    mask = places < lengths
    made = {
        'input_ids': np.where(mask, ids, 0), 'input_mask': mask,
        'segment_ids': mask & (places > lengths // 2),
        'masked_lm_positions': np.ones((len(lengths), 1)),
    }
    rows = {name: made[name].astype(np.int32) for name in inputs}
    expected = jax.device_get(jax.jit(_forward(model, {}))(params, *rows.values()))
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

    described = FORMATS[to](computation, output, compare)
    return {
        'output': str(output), **described,
        'inputs': {name: f'int32[{dims}]' for name, dims in inputs.items()},
        'outputs': {
            name: f'{x.dtype}{list(x.shape)}' for name, x in computation.outputs().items()},
        'largest_difference': max(largest),
    }


def _forward(model: LoadedModel, changes: Mapping[str, Any]) -> Any:
    """The forward pass, for any platform and one device, with changes of the model's config."""
    config = dataclasses.replace(model.config, attention='xla', layout=Layout(), **changes)
    # The class by its name: it computes from hidden states, without features of frozen encoders.
    head = HEADS[model.weights.head].of_model(config, model.weights.num_labels, {})

    def forward(flat, input_ids, input_mask, segment_ids, positions=None):  # type: ignore[no-untyped-def]
        params = to_tree(flat, None)
        # Looked up: not every format can express the first s rows of a table.
        position_ids = jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
        out: Any = Bert(config, pooled=model.weights.has('bert/pooler')).apply(
            {'params': params['bert']}, input_ids, input_mask, segment_ids, None, position_ids)
        x, pooled = out['sequence_output'], out['pooled_output']

        outputs = {'sequence_output': x.astype(jnp.float32)}
        if pooled is not None:
            outputs['pooled_output'] = pooled.astype(jnp.float32)
        if positions is not None:
            at = jnp.take_along_axis(x, positions[..., None], axis=1)
            logits: Any = Pretraining(config).apply(
                {'params': params}, at, method=Pretraining.predict)
            outputs['masked_lm_logits'] = logits[..., : config.vocab_size]
        return outputs | head.of_states(params, x, pooled)

    return forward
