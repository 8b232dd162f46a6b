"""Values of foreign JSON are compared with a schema, and refused by file, field, value, remedy."""

import json

import pytest

from bert_jax.runtime.files import read_fields
from bert_jax.runtime.schema import (
    INSIDE,
    NUMBER,
    TEXT,
    TRUTH,
    AnyOf,
    ListOf,
    MapOf,
    count,
    fault_in,
)
from tests.refusals import refused

SCHEMA = {
    'size': count(100), 'name': TEXT, 'on': TRUTH, 'share': NUMBER, 'kind': ('a', 'b'),
    'path': INSIDE, 'labels': ListOf(TEXT), 'ids': MapOf(count(9, least=0)),
    'parts': ListOf({'type': TEXT}), 'any': {}, 'either': AnyOf((TEXT, NUMBER)),
}


@pytest.mark.parametrize('content', [
    {}, {'size': 1}, {'size': None, 'labels': None}, {'unknown': [{'size': -1}]}, {'share': 3},
    {'labels': []}, {'ids': {'a': 0}}, {'parts': [{'type': 'x', 'size': 'big'}]},
    {'any': {'size': -1}}, {'either': 'x'}, {'either': -0.5}, {'path': ''}, {'path': '1_Pooling'},
    {'path': 'a/../b'},
], ids=str)
def test_what_a_schema_allows_or_does_not_know_is_read(content, tmp_path):
    file = tmp_path / 'a.json'
    file.write_text(json.dumps(content))
    assert read_fields(file, SCHEMA, 'mend it') == content


@pytest.mark.parametrize('content, fault', [
    ({'size': 0}, 'size=0 must be a whole number from 1 to 100'),
    ({'size': True}, 'size=True must be'),
    ({'size': '7'}, "size='7' must be"),
    ({'size': 10**400}, 'size=1000'),
    ({'share': float('nan')}, 'share=nan must be a number'),
    ({'share': float('inf')}, 'share=inf must be'),
    ({'share': 10**400}, 'must be a number'),
    ({'name': 3}, 'name=3 must be a text'),
    ({'name': '\ud800'}, 'must be a text'),
    ({'on': 1}, 'on=1 must be true or false'),
    ({'kind': 'c'}, "kind='c' is unknown: choose from a, b"),
    ({'kind': []}, 'kind=[] is unknown'),
    ({'labels': 'ab'}, "labels='ab' is no list"),
    ({'labels': ['a', None]}, 'labels[1]=None must be a text'),
    ({'ids': [1]}, 'ids=[1] is no JSON object'),
    ({'ids': {'a': 10}}, 'ids.a=10 must be'),
    ({'parts': [{'type': 'x'}, {'type': 4}]}, 'parts[1].type=4 must be a text'),
    ({'parts': [3]}, 'parts[0]=3 is no JSON object'),
    ({'any': 3}, 'any=3 is no JSON object'),
    ({'either': []}, 'either=[] must be a text or a number'),
    ({'path': '../x'}, "path='../x' must be a path inside the folder"),
    ({'path': 'a/../../x'}, 'must be a path inside'),
    ({'path': '/etc/passwd'}, 'must be a path inside'),
    ({'path': '~/x'}, 'must be a path inside'),
    ({'path': 'gs://b/x'}, 'must be a path inside'),
    ({'path': 'a\0'}, 'must be a path inside'),
], ids=lambda value: str(value)[:40])
def test_a_value_that_a_field_cannot_have_is_refused_by_its_name(content, fault, tmp_path):
    file = tmp_path / 'a.json'
    file.write_text(json.dumps(content))
    with refused(f'{file}: ', fault, ': mend it'):
        read_fields(file, SCHEMA, 'mend it')


def test_a_long_value_is_cut():
    assert len(fault_in({'size': 'x' * 10**6}, SCHEMA)) < 200


@pytest.mark.parametrize('content, schema, fault', [
    ('[]', SCHEMA, 'holds no JSON object'),
    ('{}', ListOf(TEXT), 'holds no JSON list'),
    ('{', SCHEMA, 'cannot be read as JSON'),
    ('[' * 100_000, SCHEMA, 'cannot be read as JSON'),
])
def test_a_file_of_another_kind_is_refused(content, schema, fault, tmp_path):
    (tmp_path / 'a.json').write_text(content)
    with refused(f"{tmp_path / 'a.json'} {fault}", ': mend it'):
        read_fields(tmp_path / 'a.json', schema, 'mend it')
    with refused('is missing', 'mend it'):
        read_fields(tmp_path / 'b.json', schema, 'mend it')
