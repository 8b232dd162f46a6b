"""The reader of compiled programs, against XLA's own counts and a program in the TPUs' form."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bert_jax.tools.preflight_hlo import CompiledText, bundles, scope_of, short_name

MODEL = 'jit(train_step)/jvp(BertForPreTraining)/bert/encoder/layer_3'
# What a compiled step looks like there, cut down to what is read.
TPU = (Path(__file__).resolve().parents[1] / 'fixtures' / 'tpu_step.hlo').read_text()


def test_everything_counts_as_often_as_it_runs():
    text = CompiledText(TPU)
    times = {i.name: i.times for i in text.instructions}
    assert times['part.1'] == times['all-reduce.1'] == 5 and times['first'] == 1
    assert {i.name: c for i, c in text.timed()} == {
        'part.1': 100, 'first': 7, 'second': None, 'kernel': None  # a sentinel, a kernel
    }
    kernel = next(i for i in text.instructions if i.name == 'kernel')
    assert text.bytes_moved(kernel) == 4 * (512 * 1024 + 1000 * 8)


def test_messages_are_counted_once_whatever_they_are_spread_over():
    found = {(c['kind'], c['scope']): c for c in CompiledText(TPU).collectives()}
    assert found['all-reduce', 'several'] == {
        'kind': 'all-reduce', 'scope': 'several', 'count': 5, 'largest': 'f32[16,8]',
        'bytes': 5 * (16 * 8 * 4 + 2 * 4)}
    assert found['all-reduce', 'optimizer']['count'] == 5  # on the same channel
    gather = found['all-gather', 'optimizer']
    assert gather['bytes'] == gather['count'] * 8 * 8 * 2
    permute = found['collective-permute', 'optimizer']
    assert (permute['count'], permute['bytes']) == (1, 512)


@pytest.mark.parametrize('strides, padding, left, right', [
    ((1, 1), [(0, 0), (0, 0)], (1, 1), (1, 1)),
    ((3, 1), [(2, 1), (0, 3)], (2, 1), (1, 2)),
    ((7, 2), [(0, 0), (1, 1)], (8, 3), (1, 1)),  # a batch of products, in the TPUs' way
])
def test_flops_of_convolutions_are_xla_s(strides, padding, left, right):
    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, strides, padding, left, right, ('NHWC', 'HWIO', 'NHWC'))

    lowered = jax.jit(convolve).lower(jnp.ones((2, 8, 9, 4)), jnp.ones((3, 4, 4, 6)))
    found = CompiledText(lowered.as_text(dialect='hlo')).product_flops()
    assert found == lowered.cost_analysis()['flops']


def test_flops_of_loops_are_those_of_all_their_turns():
    def power(x):
        return lax.fori_loop(0, 7, lambda i, y: y @ x, x)

    lowered = jax.jit(power).lower(jnp.ones((8, 8)))
    assert CompiledText(lowered.as_text(dialect='hlo')).product_flops() == 7 * 2 * 8**3
    assert CompiledText(lowered.compile().as_text()).product_flops() == 7 * 2 * 8**3


def test_a_reduction_over_devices_is_found():
    mesh = jax.make_mesh((8,), ('data',), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec('data'))
    whole = NamedSharding(mesh, PartitionSpec())
    total = jax.jit(lambda x: x.sum(axis=0), in_shardings=rows, out_shardings=whole)
    text = total.lower(jnp.ones((16, 5))).compile().as_text()
    (found,) = CompiledText(text).collectives()
    assert (found['kind'], found['count'], found['bytes']) == ('all-reduce', 1, 5 * 4)


@pytest.mark.parametrize('op_name, scope', [
    (f'{MODEL}/attention/self/qkv/dot_general', ('qkv', 'forward')),
    (f'{MODEL}/attention/self/BQND,BKND->BNQK/dot_general', ('attention', 'forward')),
    (f'{MODEL}/attention/output/dense/add', ('attention output', 'forward')),
    (f'{MODEL}/attention/output/LayerNorm/mul', ('layer norm', 'forward')),
    (MODEL.replace('jvp(BertForPreTraining)', 'transpose(jvp(BertForPreTraining))')
     + '/output/dense/dot_general', ('output', 'backward')),
    ('jit(train_step)/transpose(jvp(BertForPreTraining))/checkpoint/rematted_computation/'
     'intermediate/mul', ('intermediate', 'forward again')),
    ('jit(train_step)/jvp(...H,VH->...V)/dot_general', ('head', 'forward')),
    ('jit(train_step)/add', ('optimizer', 'update')),
    ('', ('optimizer', 'update')),
])
def test_scopes(op_name, scope):
    assert scope_of(op_name) == scope


def test_names_without_what_jax_adds():
    assert short_name(f'{MODEL}/output/dense/mul') == (
        'BertForPreTraining/bert/encoder/layer_N/output/dense/mul')


def test_bundles_are_counted_by_what_loops():
    schedule = """
     0   :  { %s1 = smov 0 }
   0x1   :  { %s2 = smov 1 ;; %s3 = smov 2 }
   0x2 LB: > { %s4 = sphi 0 }
   0x3   : > { %v5 = vadd.f32 %v1, %v2 }
   0x4 PF: > { %6 = sbr.rel (!%p1) target = $region2 }
   0x5   :  { %7 = vsyncpa 1 }
"""
    assert bundles(schedule) == (3, 3)


def test_a_kernels_operands_are_read_past_the_compilers_numbering():
    text = CompiledText("""
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %k = f32[8]{0} custom-call(%a, %a, %a, %a, %a, /*index=5*/%a), custom_call_target="x"
}
""")
    kernel = next(i for i in text.instructions if i.name == 'k')
    assert kernel.operands == ('a',) * 6
    assert text.bytes_moved(kernel) == 2 * 32, 'each step takes another part of an operand'


def test_a_sum_that_is_scattered_at_once_is_no_all_reduce():
    text = CompiledText("""
%all-reduce-scatter (x: f32[16,8]) -> f32[4,8] {
  %x = f32[16,8]{1,0} parameter(0)
  %sum = f32[16,8]{1,0} all-reduce(%x), channel_id=1, to_apply=%add
  ROOT %part = f32[4,8]{1,0} dynamic-slice(%sum, %x), dynamic_slice_sizes={4,8}
}

ENTRY %main (a: f32[16,8]) -> f32[4,8] {
  %a = f32[16,8]{1,0} parameter(0)
  ROOT %f = f32[4,8]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter
}
""")
    (found,) = text.collectives()
    assert (found['kind'], found['bytes']) == ('reduce-scatter', 16 * 8 * 4)
