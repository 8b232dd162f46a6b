"""A store that a pipeline of Apache Beam makes has the bytes of one that this machine makes."""

import dataclasses
import functools
import os
import signal
import sys
from pathlib import Path

import pytest

from bert_jax.config.filtering import FilterOptions
from bert_jax.corpus import (
    sharing,
    store_building,
    store_parts,
    text_batches,
    tokenize,
    wordpiece_training,
)
from bert_jax.corpus.document_facts import document_facts
from bert_jax.corpus.sources import TextSpec, open_source
from bert_jax.corpus.trainers import Wanted
from bert_jax.rows.store import TokenStore
from bert_jax.runtime import files
from tests.corpus.test_document_facts import EVALUATION_TEXTS, TOKENIZER, _texts
from tests.corpus.test_store_building import content
from tests.refusals import refused

pytest.importorskip('apache_beam', reason='needs the extra [beam]')
from bert_jax.corpus import beam_shares, beam_words

pytestmark = [pytest.mark.extras, pytest.mark.slow]
IN_THREADS = ['--runner=DirectRunner', '--direct_num_workers=1']
IN_PROCESSES = [
    '--runner=DirectRunner', '--direct_running_mode=multi_processing', '--direct_num_workers=2']


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without TensorFlow; and each file is a share."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(beam_shares, '_PAUSE_SECONDS', 0.0)


def _write_text(folder):
    """A pattern of six files with copies in different ones, and facts that leave some out."""
    evaluation_file = folder / 'evaluation'
    evaluation_file.write_text('\n'.join(EVALUATION_TEXTS))
    texts = _texts()
    for number in range(6):
        (folder / f'{number}.txt').write_text('\n\n'.join(texts[number::6]))
    return f'{folder}/*.txt', document_facts(
        FilterOptions(0.8, str(evaluation_file), True), TOKENIZER)


@pytest.fixture
def text(tmp_path):
    """A pattern of six files."""
    return _write_text(tmp_path)[0]


def _opened(text, folder, **options):
    return store_building.open_build(open_source(text), TOKENIZER, folder, False, **options)


def _of_pool(text, folder, **options):
    """The bytes of the store that this machine makes."""
    store = store_building.build_store(open_source(text), TOKENIZER, folder, False, **options)
    assert store.manifest['num_duplicates'] == 2
    return content(store.path)


@pytest.mark.parametrize(('options', 'place'), [
    pytest.param(IN_THREADS, 'disk', id='threads'),
    pytest.param(IN_PROCESSES, 'disk', id='processes'),
    pytest.param(IN_THREADS, 'bucket', id='bucket'),
])
def test_a_pipeline_makes_the_bytes_of_the_pool(tmp_path, request, options, place):
    folder = files.as_path(tmp_path)
    if place == 'bucket':
        folder = files.as_path(request.getfixturevalue('bucket'))
    text, facts = _write_text(folder)
    expected = _of_pool(text, tmp_path / 'alone', facts=facts)
    build = _opened(text, folder / 'beam', facts=facts)
    beam_shares.run(build, options)
    assert content(build.folder) == expected
    beam_shares.run(build, options)  # finds it finished


@pytest.mark.parametrize('compared_bytes', [1 << 30, 200])
def test_parts_and_workers_that_compare_change_nothing(tmp_path, monkeypatch, compared_bytes):
    monkeypatch.setattr(beam_shares, '_COMPARED_BYTES', compared_bytes)
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 2)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', 20)
    text, facts = _write_text(tmp_path)
    expected = _of_pool(text, tmp_path / 'alone', facts=facts)
    build = _opened(text, tmp_path / 'beam', facts=facts)
    beam_shares.run(build, IN_THREADS)
    assert content(build.folder) == expected
    assert len(store_parts.part_names(expected)) > 12


@pytest.mark.parametrize(('kind', 'most_words'), [
    ('wordpiece', 10**6), ('unigram', 10**6),
    ('wordpiece', 50),  # more words than are kept: which are forgotten depends on their order
])
def test_words_that_a_pipeline_counts_give_the_same_vocabulary(
        tmp_path, monkeypatch, kind, most_words):
    for module in (wordpiece_training, beam_words):
        monkeypatch.setattr(module, 'MAX_COUNTED_WORDS', most_words)
    monkeypatch.setattr(sharing, '_VOCABULARY_SAMPLE_BYTES', 6000)  # of files of about 1500
    _write_text(tmp_path)
    texts = [TextSpec(f'{tmp_path}/{names}.txt') for names in ('[0-3]', '4')]
    mixing = sharing.Mixing((1.0, 3.0))  # so that the second is read again
    counted = []

    def count(*arguments):
        counted.append(beam_words.counted_runs(*arguments, options=IN_THREADS))
        return counted[-1]

    def vocabulary(folder, count_runs):
        folder.mkdir()
        places = sharing.Places(files.as_path(folder), files.as_path(folder))
        return sharing.share_vocabulary(
            texts, Wanted(kind, 300, True), places, mixing, count_runs=count_runs).read_text()

    expected = vocabulary(tmp_path / 'alone', None)
    assert vocabulary(tmp_path / 'beam', count) == expected
    assert [runs is not None for runs in counted] == [most_words > 50]
    assert len(list((tmp_path / 'beam').iterdir())) == 1


def _read_or_die(read, dead, unit):
    """Kills its process in the middle of a file, once."""
    for number, document in enumerate(read(unit)):
        if unit.name.endswith('3.txt') and number == 2 and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield document


def test_a_dask_cluster_that_loses_a_worker_makes_the_bytes_of_the_pool(tmp_path):
    distributed = pytest.importorskip('distributed', reason='needs apache-beam[dask]')
    text, facts = _write_text(tmp_path)
    expected = _of_pool(text, tmp_path / 'alone', facts=facts)
    build = _opened(text, tmp_path / 'dask', facts=facts)
    dead = Path(tmp_path / 'dead')
    reading = functools.partial(_read_or_die, build.source.read, dead)
    build = dataclasses.replace(build, source=dataclasses.replace(build.source, read=reading))
    with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host='127.0.0.1', dashboard_address=None,
            silence_logs='CRITICAL') as cluster:
        beam_shares.run(build, [
            '--runner=apache_beam.runners.dask.dask_runner.DaskRunner',
            f'--dask_client_address={cluster.scheduler_address}'])
        distributed.default_client().close()
    assert dead.exists()
    assert content(build.folder) == expected


def test_a_pipeline_makes_only_what_is_missing(tmp_path, text, monkeypatch):
    build = _opened(text, tmp_path)
    store_building.make_shares(build, store_building.Slice(0, 2))
    made = []
    make = store_building.ShareMaker._make_part

    def counted(self, share, *arguments):
        made.append(share.number)
        return make(self, share, *arguments)

    monkeypatch.setattr(store_building.ShareMaker, '_make_part', counted)
    beam_shares.run(build, IN_THREADS)
    assert sorted(made) == [1, 3, 5]


@pytest.mark.parametrize('failures', [2, 3])
def test_a_share_is_tried_three_times_and_then_named(tmp_path, text, monkeypatch, failures):
    left = [failures]
    make = store_building.ShareMaker.make

    def failing(self, share):
        if share.number == 4 and left[0]:
            left[0] -= 1
            raise OSError('the disk is full')
        return make(self, share)

    monkeypatch.setattr(store_building.ShareMaker, 'make', failing)
    build = _opened(text, tmp_path)
    options = IN_THREADS
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
        beam_shares.run(_opened(text, tmp_path), IN_THREADS)


def test_counters_say_what_the_manifest_does(tmp_path, text, monkeypatch):
    (tmp_path / '3.txt').write_bytes(b'Good.\n\xff')
    pipelines = []

    class Kept(beam_shares.beam.Pipeline):
        def __init__(self, **options):
            super().__init__(**options)
            pipelines.append(self)

    monkeypatch.setattr(beam_shares.beam, 'Pipeline', Kept)
    build = _opened(text, tmp_path, max_bad_files=1)
    beam_shares.run(build, IN_THREADS)
    counters = pipelines[0].result.metrics().query()['counters']
    found = {counter.key.metric.name: counter.committed for counter in counters}
    manifest = TokenStore.open(build.folder).manifest
    assert found == {
        'bad_files': 1, 'text_bytes': manifest['text_bytes'],
        'documents': manifest['num_documents'], 'tokens': manifest['num_tokens']}
    assert list(manifest['bad_files']) == [str(tmp_path / '3.txt')]


@pytest.mark.parametrize('options', [[], ['--no_wait_until_finish']])
def test_a_pipeline_that_ends_without_the_store_is_an_error(tmp_path, text, monkeypatch, options):
    monkeypatch.setattr(beam_shares, '_finish', lambda made, job: None)  # as of a cancelled job
    build = _opened(text, tmp_path)
    with refused(build.folder, 'the pipeline ended without the store', 'the same command'):
        beam_shares.run(build, [*IN_THREADS, *options])


def test_workers_do_not_say_how_long_the_command_took(tmp_path, text, capfd):
    build = dataclasses.replace(_opened(text, tmp_path), progress=True)
    beam_shares.run(build, IN_THREADS)
    assert (build.folder / 'manifest.json').exists()
    assert 'token store:' not in capfd.readouterr().err


def test_what_a_runner_needs_is_named(tmp_path, text, monkeypatch):
    monkeypatch.setitem(sys.modules, 'apache_beam.runners.dataflow.dataflow_runner', None)
    with refused('--runner=DataflowRunner', "install what the runner needs, 'apache-beam[gcp]'"):
        beam_shares.run(_opened(text, tmp_path), ['--runner=DataflowRunner'])


def test_a_runner_that_is_none_is_refused(tmp_path, text):
    with refused('--runner=Nobody', 'Unexpected pipeline runner'):
        beam_shares.run(_opened(text, tmp_path), ['--runner=Nobody'])


def test_a_pipeline_takes_the_shares_that_an_earlier_store_has(tmp_path, text, monkeypatch):
    _of_pool(text, tmp_path)
    changed = tmp_path / '3.txt'
    changed.write_text(changed.read_text().replace(' ', '  ').upper())
    expected = _of_pool(text, tmp_path / 'fresh')
    opened = _opened(text, tmp_path)
    read = []
    batches = store_building.text_batches

    def noting(source, indices, done):
        read.extend(source.units[i].name for i in indices)
        return batches(source, indices, done)

    monkeypatch.setattr(store_building, 'text_batches', noting)
    beam_shares.run(opened, IN_THREADS)
    assert read == [str(changed)]
    assert content(opened.folder) == expected
