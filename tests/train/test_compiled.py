"""Steps compiled ahead: the same results, compiled once, sized; and the compiler's refusals."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.train.program import CompiledStep, Memory, device_bytes, device_memory

G = 1 << 30


@pytest.fixture(scope='module')
def mesh():
    return jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))


def test_a_step_compiled_ahead_is_used_and_donates(mesh):
    rows, whole = NamedSharding(mesh, PartitionSpec('data')), NamedSharding(mesh, PartitionSpec())
    traced = []

    def add(total, batch):
        traced.append(batch['x'].shape)
        return total + batch['x'].sum()

    step = CompiledStep(jax.jit(add, donate_argnums=0, out_shardings=whole))
    total = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=whole)
    program, memory = step.compile(
        total, {'x': jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=rows)})
    assert program is not None
    assert memory.arguments == 3 * 4 + 2 * 2 * 4  # the total, and an eighth of the rows
    assert memory.total >= memory.arguments

    first = jax.device_put(np.zeros(3, np.float32), whole)
    for size, shapes in ((16, 1), (16, 1), (8, 2)):  # another shape is compiled when it comes
        batch = {'x': jax.device_put(np.ones((size, 2), np.float32), rows)}
        before, first = first, step(first, batch)
        assert before.is_deleted() and len(traced) == shapes
    np.testing.assert_array_equal(first, [32 + 32 + 16] * 3)


class Refusing:
    """A jitted step whose compilation ends with this message."""

    def __init__(self, message):
        self.message = message

    def lower(self, *arguments):
        return self

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.message)


@pytest.mark.parametrize('message, temporaries', [
    ('RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries '
     '(138.5G) exceeds available HBM (15.75G).', 138.5 * G),
    ('RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. '
     'Used 25.00G of 15.75G hbm. Exceeded hbm capacity by 9.25G.', 25 * G - 4096),
    ('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3.5GiB.', 3.5 * G),
])
def test_the_compiler_s_refusal_says_how_much_is_needed(mesh, message, temporaries):
    whole = NamedSharding(mesh, PartitionSpec())
    batch = {'x': jax.ShapeDtypeStruct((1024,), jnp.float32, sharding=whole)}
    program, memory = CompiledStep(Refusing(message)).compile(batch)
    assert program is None
    assert memory == Memory(4096, 0, int(temporaries))


def test_other_faults_of_the_compiler_are_raised(mesh):
    with pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'):
        CompiledStep(Refusing('INTERNAL: oops')).compile({})


def test_bytes_of_a_device_are_those_of_its_shards(mesh):
    rows, whole = NamedSharding(mesh, PartitionSpec('data')), NamedSharding(mesh, PartitionSpec())
    tree = [jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=rows),
            jax.ShapeDtypeStruct((5,), jnp.bfloat16, sharding=whole)]
    assert device_bytes(tree) == 2 * 3 * 4 + 5 * 2


def refuse():
    raise jax.errors.JaxRuntimeError('INVALID_ARGUMENT: only for addressable devices')


@pytest.mark.parametrize('kind, stats, found', [
    ('TPU v5 lite', lambda: {'bytes_limit': 123}, 123),  # it knows best
    ('TPU v5 lite', lambda: None, int(15.75 * G)),
    ('TPU v4', refuse, int(30.75 * G)),  # known to the compiler alone
    ('cpu', lambda: None, None),
    ('NVIDIA H100', lambda: None, None),
])
def test_memory_of_a_device(kind, stats, found):
    device = types.SimpleNamespace(device_kind=kind, memory_stats=stats)
    assert device_memory(device) == found
