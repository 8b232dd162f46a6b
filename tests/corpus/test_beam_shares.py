"""A store that a pipeline of Apache Beam makes has the bytes of one that this machine makes."""

import dataclasses
import sys

import pytest

from bert_jax.corpus import store_building, tokenize
from bert_jax.corpus.sources import open_source
from tests.corpus.store_worker import tokenizer
from tests.corpus.test_store_building import _random_texts, content
from tests.refusals import refused

pytest.importorskip('apache_beam', reason='needs the extra [beam]')
from bert_jax.corpus import beam_shares

pytestmark = [pytest.mark.extras, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without TensorFlow; and each file is a share."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(beam_shares, '_PAUSE_SECONDS', 0.0)


@pytest.fixture
def text(tmp_path):
    """A pattern of six files."""
    for number in range(6):
        (tmp_path / f'{number}.txt').write_text('\n\n'.join(_random_texts(30, seed=number)))
    return f'{tmp_path}/*.txt'


def _opened(text, folder, **options):
    return store_building.open_build(open_source(text), tokenizer(), folder, False, **options)


@pytest.mark.parametrize('options', [
    ['--runner=DirectRunner'],
    ['--runner=DirectRunner', '--direct_running_mode=multi_processing',
     '--direct_num_workers=2'],
], ids=lambda options: options[-1])
def test_a_pipeline_makes_the_bytes_of_the_pool(tmp_path, text, options):
    expected = content(
        store_building.build_store(open_source(text), tokenizer(), tmp_path / 'alone', False).path)
    build = _opened(text, tmp_path / 'beam')
    beam_shares.run(build, options)
    assert content(build.folder) == expected
    beam_shares.run(build, options)  # finds it finished


def test_a_pipeline_makes_only_what_is_missing(tmp_path, text, monkeypatch):
    build = _opened(text, tmp_path)
    store_building.make_shares(build, store_building.Slice(0, 2))
    made = []
    make = store_building.ShareMaker.make

    def counted(self, share, note):
        made.append(share.number)
        make(self, share, note)

    monkeypatch.setattr(store_building.ShareMaker, 'make', counted)
    beam_shares.run(build, ['--runner=DirectRunner', '--direct_num_workers=1'])
    assert sorted(made) == [1, 3, 5]


@pytest.mark.parametrize('failures', [2, 3])
def test_a_share_is_tried_three_times_and_then_named(tmp_path, text, monkeypatch, failures):
    left = [failures]
    make = store_building.ShareMaker.make

    def failing(self, share, note):
        if share.number == 4 and left[0]:
            left[0] -= 1
            raise OSError('the disk is full')
        make(self, share, note)

    monkeypatch.setattr(store_building.ShareMaker, 'make', failing)
    build = _opened(text, tmp_path)
    options = ['--runner=DirectRunner', '--direct_num_workers=1']
    if failures == 3:
        with refused('1 share failed 3 times', 'share 4 (OSError: the disk is full)'):
            beam_shares.run(build, options)
        assert [share.number for share in store_building.undone(build)] == [4]
    beam_shares.run(build, options)
    assert (build.folder / 'manifest.json').exists()
    assert not (build.folder / 'faults.json').exists()


def test_bad_files_are_named_by_a_pipeline_too(tmp_path, text):
    (tmp_path / '3.txt').write_bytes(b'\xff')
    with refused('3.txt is not text in UTF-8', 'max_bad_files=1'):
        beam_shares.run(_opened(text, tmp_path), ['--runner=DirectRunner'])
    build = _opened(text, tmp_path, max_bad_files=1)
    beam_shares.run(build, ['--runner=DirectRunner'])
    assert (build.folder / 'manifest.json').exists()


@pytest.mark.parametrize('options', [[], ['--no_wait_until_finish']])
def test_a_pipeline_that_ends_without_the_store_is_an_error(tmp_path, text, monkeypatch, options):
    monkeypatch.setattr(beam_shares, '_finish', lambda made, job: None)  # as of a cancelled job
    build = _opened(text, tmp_path)
    with refused(build.folder, 'the pipeline ended without the store', 'the same command'):
        beam_shares.run(build, ['--runner=DirectRunner', *options])


def test_workers_do_not_say_how_long_the_command_took(tmp_path, text, capfd):
    build = dataclasses.replace(_opened(text, tmp_path), progress=True)
    beam_shares.run(build, ['--runner=DirectRunner'])
    assert (build.folder / 'manifest.json').exists()
    assert 'token store:' not in capfd.readouterr().err


def test_what_a_runner_needs_is_named(tmp_path, text, monkeypatch):
    monkeypatch.setitem(sys.modules, 'apache_beam.runners.dataflow.dataflow_runner', None)
    with refused('--runner=DataflowRunner', "install what the runner needs, 'apache-beam[gcp]'"):
        beam_shares.run(_opened(text, tmp_path), ['--runner=DataflowRunner'])


def test_a_runner_that_is_none_is_refused(tmp_path, text):
    with refused('--runner=Nobody', 'Unexpected pipeline runner'):
        beam_shares.run(_opened(text, tmp_path), ['--runner=Nobody'])
