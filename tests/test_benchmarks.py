"""Benchmarks: peers compute the same loss, pages show the stored results, curves and cycles."""

import argparse
import collections
import contextlib
import functools
import gzip
import itertools
import json
import statistics
import sys

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    """Makes their modules importable, as if one of them had been started."""
    monkeypatch.syspath_prepend(str(ROOT / 'benchmarks'))


@pytest.mark.extras
def test_the_tuned_peer_has_the_loss_of_the_stock_one():
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    pytest.importorskip('transformers', reason='the extra [parity] is not installed')
    import huggingface_pretrain as peer

    args = argparse.Namespace(
        layers=1, hidden=32, heads=2, vocab_size=100, batch_size=3, seq=16, predictions=4)
    torch.manual_seed(0)
    model, batch = peer.make_model(args).eval(), peer.make_batch(args, 'cpu')
    losses = [compute(model, batch) for compute in (peer.loss_everywhere, peer.loss_where_masked)]
    torch.testing.assert_close(*losses)


def test_the_gpu_page_has_a_row_for_each_shape(tmp_path):
    import gpu_page

    def write(name, result):
        (tmp_path / f'{name}.json').write_text(json.dumps(result))

    figures = [
        {'unit': 'sequences/s', 'median': 1000.0},
        {'unit': 'tokens/s', 'median': 5.0},
    ]
    write('base-128-256-ours', {
        'hardware': {'device_kind': 'NVIDIA X'}, 'date': '2026-01-02T03:04', 'versions': {'jax': 1},
        'results': [{'figures': figures}],
    })
    write('base-128-256-pytorch', {'sequences_per_second': 400.0, 'versions': {'torch': 2}})
    write('large-512-32-pytorch', {'sequences_per_second': 50.0, 'versions': {'torch': 2}})
    write('flag-xla_gpu_x=false', {'results': [{'figures': figures}]})
    write('vectors-pytorch', {'sentences_per_second': {'in order': [3.0, 1.0, 2.0]}})
    page = gpu_page.page(tmp_path)
    assert '| base, 256 of 128 | 1,000 | 400 (2.50) | 5,600 |' in page
    assert '| large, 32 of 512 | not measured | 50 | 420 |' in page
    assert '| PyTorch, in order | 2 |' in page
    assert '| `--xla_gpu_x=false` | 1,000 |' in page
    assert '- NVIDIA X, 2026-01-02' in page
    assert '- PyTorch, compiled, head where masked: torch 2' in page


def test_the_gpu_page_has_losses_beside_those_of_cpus(tmp_path):
    import gpu_page

    references = ROOT / 'bert_jax' / 'watch' / 'references'
    stored = json.loads((references / 'quickstart.json').read_text())
    for seed in range(2):
        run = tmp_path / f'run-quickstart-{seed}'
        run.mkdir()
        first = {'step': 1, 'check/loss': 9.5 + seed, 'check/batch': stored['check/batch'][seed][0]}
        (run / 'metrics.jsonl').write_text(json.dumps(first) + '\n{"step": 1, "loss": 2}\n')
        (tmp_path / f'run-quickstart-{seed}.json').write_text('{"eval/mlm_accuracy": 0.25}')
    page = gpu_page.page(tmp_path)
    of_cpus = ', '.join(f'{losses[0]:.3f}' for losses in stored['check/loss'])
    assert f'| quickstart, loss at 1 | 9.500, 10.500 | {of_cpus} |' in page
    assert '| quickstart, rows | those of the CPUs | |' in page
    assert '| quickstart, masked words found at its end | 0.250, 0.250 | 0.283, 0.294' in page
    assert 'synthetic' not in page


def test_the_page_measures_in_turn_and_goes_on_where_it_was_stopped(tmp_path):
    from benchmarks import page

    ran = []

    def work(name):
        if len(ran) == 3 and not path.with_suffix('.go').exists():
            raise KeyboardInterrupt
        ran.append(name)
        return {'seconds': 1.0 + len(ran), 'peak_memory': 1e9 * len(ran)}

    def measure(deadline):
        page.measure(row, argparse.Namespace(**files), path, deadline)

    programs = {name: functools.partial(work, name) for name in ('ours', 'in order')}
    row = page.Row('vectors', lambda options: contextlib.nullcontext(programs), 2)
    path = tmp_path / 'row.json'
    files = dict.fromkeys(page.FILES, 'here')
    with pytest.raises(KeyboardInterrupt):
        measure(float('inf'))
    path.with_suffix('.go').touch()
    measure(0)  # nothing is begun
    assert len(ran) == 3
    measure(float('inf'))
    measure(float('inf'))  # nothing is missing
    assert ran == ['ours', 'in order', 'in order', 'ours']
    record = json.loads(path.read_text())
    # Seconds: 2 and 5, 3 and 4.
    assert page.lines_of(row, record) == [
        '| vectors | in order | 1.15 (0.80-1.50) | 3.50 | 3.50 | 4.00 | 3.00 |']
    files['text'] = 'elsewhere'
    with pytest.raises(SystemExit, match='other versions, code or files: remove it'):
        measure(float('inf'))
    files['text'] = 'here'
    record['machine']['code'] = 'another'
    path.write_text(json.dumps(record))
    with pytest.raises(SystemExit, match='other versions, code or files: remove it'):
        measure(float('inf'))


def test_the_page_says_of_how_much_text_ids_are_made(tmp_path):
    from benchmarks import page

    (tmp_path / 'a.txt').write_bytes(b'x' * 2_000_000)
    with gzip.open(tmp_path / 'b.txt.gz', 'wb') as file:
        file.write(b'x' * 3_000_000)
    measurement = {
        'text_bytes': page.text_bytes(f'{tmp_path}/*'), 'seconds': 2.0, 'peak_memory': 1e9}
    record = {'programs': ['ours', 'its'], 'measurements': [
        measurement | {'program': name} for name in ('ours', 'its')]}
    line, = page.lines_of(page.rows()['prepare'], record)
    assert line.startswith('| text to ids on a disk, whole commands, 5 MB | its |')


def test_the_page_shows_the_rows_that_are_measured_whole():
    from benchmarks import page

    of = {'processor': 'X', 'cores': 2, 'GLIBC_TUNABLES': '', 'versions': {'jax': '1'}}
    measurement = {'program': 'ours', 'seconds': 2.0, 'cpu_seconds': 3.0, 'peak_memory': 1e9,
                   'date': '2026-01-02T03:04:05', 'load_before': 0.5}
    whole = {'machine': of, 'programs': ['ours'], 'measurements': [measurement] * 3}
    begun = whole | {'measurements': [measurement]}
    text = page.table({'start-help': whole, 'start-import': begun})
    assert '| `bert_jax.main --help` | 2.00 (2.00-2.00) | 3.00 (3.00-3.00) | 1.00 |' in text
    assert '- 2 cores of X, 2026-01-02; GLIBC_TUNABLES not set; jax 1' in text
    assert 'import bert_jax' not in text


def test_a_command_ends_at_a_line_of_its_output_or_says_what_it_printed():
    from benchmarks import worker

    script = "import time; print('begun', flush=True); time.sleep(60)"
    finished = worker.run([sys.executable, '-c', script], until='begun')
    assert finished.output == 'begun\n'
    assert finished.seconds < 30
    assert finished.peak_memory > 1e6
    with pytest.raises(SystemExit, match='ended with 3:\nwhy'):
        worker.run([sys.executable, '-c', "print('why'); raise SystemExit(3)"])
    with pytest.raises(SystemExit, match='ended with 0'):
        worker.run([sys.executable, '-c', ''], until='begun')


def test_programs_that_are_measured_share_no_cache_of_compiled_ones(monkeypatch):
    from benchmarks import worker

    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', 'mine')
    monkeypatch.setenv('GLIBC_TUNABLES', 'mine')
    environment = worker.environment()
    assert 'JAX_COMPILATION_CACHE_DIR' not in environment
    assert environment['GLIBC_TUNABLES'] == 'mine'


def test_made_up_sentences_are_of_the_vocabulary_s_words():
    import vectors

    vocabulary = vectors.made_up_vocabulary(200)
    assert len(set(vocabulary)) == 200
    lengths = []
    for sentence in vectors.made_up_sentences(vocabulary, 1000):
        assert set(sentence.split()) <= set(vocabulary[5:])
        lengths.append(len(sentence.split()))
    assert (min(lengths), max(lengths)) == (2, 50)
    assert statistics.mean(lengths) == pytest.approx(11, abs=1)


@pytest.fixture
def stored_quickstart():
    return json.loads((ROOT / 'docs' / 'quickstart.json').read_text())


@pytest.fixture
def first_page():
    """The words of docs/index.md, each followed by one space."""
    return ' '.join((ROOT / 'docs' / 'index.md').read_text().split())


@pytest.mark.parametrize('metric', ['mlm_accuracy', 'nsp_accuracy'])
def test_the_quickstart_s_accuracies_are_those_of_its_stored_runs(
    first_page, stored_quickstart, metric
):
    shares = [100 * run[metric] for run in stored_quickstart['runs']]
    mean = statistics.mean(shares)
    assert f'{mean:.1f} % ({min(shares):.1f} to {max(shares):.1f})' in first_page


def in_minutes(seconds):
    minutes, rest = divmod(seconds, 60)
    return f'{minutes} min {rest:02} s'


def test_the_quickstart_s_time_is_that_of_its_stored_runs(first_page, stored_quickstart):
    seconds = [run['seconds'] for run in stored_quickstart['runs']]
    assert f'{in_minutes(min(seconds))} to {in_minutes(max(seconds))}' in first_page
    assert stored_quickstart['hardware'] in first_page
    assert stored_quickstart['date'] in first_page


def test_the_quickstart_s_gaps_are_filled_as_in_its_first_stored_run(first_page, stored_quickstart):
    for text, words in stored_quickstart['runs'][0]['gaps'].items():
        assert f'{text} {words}' in first_page


def test_a_power_law_is_fitted_and_its_interval_holds_the_true_value():
    import curves

    flops = np.geomspace(1e13, 1e14, 9)
    errors = np.exp(0.02 * np.random.default_rng(0).standard_normal(9))
    law = curves.fit(flops, 30 * flops**-0.05 * errors)
    assert law.slope == pytest.approx(-0.05, abs=0.02)
    predicted = law.at(2e14)
    assert predicted.low < 30 * 2e14**-0.05 < predicted.high
    assert 0.03 < predicted.high / predicted.middle - 1 < 0.12


# A recipe at two learning rates, of which that of `a` is the better one; `b` is not pre-trained.
TABLE = {
    'scale': 'tiny',
    'flops': {'a': 1e13, 'b': 0.0, 'c': 1e13},
    'parts': {'p': 'of e.py:five/4,tiny', 'q': 'of e.py:five/4@1,tiny'},
    'cells': {'ppl': {
        'a': {'parts': ['p'], 'values': [np.e**6]},
        'c': {'parts': ['q'], 'values': [np.e**7]},
    }},
}


def test_a_recipe_counts_at_its_best_rate():
    import curves

    (point,) = curves.points(TABLE, 'ppl')
    assert point == ('tiny', 'five', 1e13, pytest.approx(6))


def test_the_cost_of_a_point_may_be_its_sequences(tmp_path):
    import curves

    run = tmp_path / 'p' / 'runs' / 'seed=0'
    run.mkdir(parents=True)
    (tmp_path / 'q').symlink_to('p')
    config = {'train': {'batch_size': 8}, 'phases': [{'steps': 2}, {'steps': 3, 'batch_size': 4}]}
    (run / 'config.json').write_text(json.dumps(config))
    (point,) = curves.points(TABLE, 'ppl', tmp_path)
    assert point.cost == 2 * 8 + 3 * 4


def stored_program(topology, model='base'):
    import cycles

    programs = json.loads(cycles.STORED.read_text())['programs']
    return next(program for program in programs
                if (program['topology'], program['model']) == (topology, model))


@pytest.mark.parametrize(('model', 'topology'), [
    ('base', 'v5e:2x2'), ('base', 'h100:1'), ('attention', 'v6e:2x2')])
def test_a_program_that_takes_more_than_stored_is_found(model, topology):
    import cycles

    program = stored_program(topology, model)
    assert program['figures']
    for name, stored in program['figures'].items():
        best = {'value': stored, 'date': '2026-01-02'}
        program = program | {'best': program['best'] | {name: best}}
        comparison = cycles.compare(program, {name: 1.019 * stored})
        assert comparison.is_good(program)
        assert '(+1.9 %)' in comparison.lines[0]
        comparison = cycles.compare(program, {name: 1.03 * stored})
        assert comparison.above_stored == comparison.above_best == [name]
        assert not comparison.is_good(program)


def test_steps_that_grow_little_by_little_need_a_reason():
    import cycles

    name = 'cycles_per_sequence'
    best = {name: {'value': 1000, 'date': '2026-01-02'}}
    program = stored_program('v6e:2x2') | {'figures': {name: 1015}, 'best': best, 'reasons': {}}
    comparison = cycles.compare(program, {name: 1030})
    assert not comparison.above_stored
    assert not comparison.is_good(program)
    assert '+3.0 % above the best, 1.0 on 2026-01-02: no reason' in comparison.lines[0]

    record = {'date': '2026-03-04', 'versions': {}}
    after = cycles.updated(program, {name: 1030}, record, 'exact sums')
    assert after['figures'] == {name: 1030}
    assert after['best'] == best
    assert (after['date'], after['versions']) == ('2026-03-04', {})
    comparison = cycles.compare(after, {name: 1030})
    assert comparison.is_good(after)
    assert 'exact sums' in comparison.lines[0]
    better = cycles.updated(after, {name: 990}, record, '')
    assert better['best'] == {name: {'value': 990, 'date': '2026-03-04'}}
    assert better['reasons'] == {}
    # Without schedules, another figure is measured: the rest stays, and so does its date.
    estimated = 'cycles_without_schedules_per_sequence'
    record = {'date': '2026-05-06', 'versions': {'jax': '9'}}
    beside = cycles.updated(after, {estimated: 700}, record, '')
    assert (beside['date'], beside['versions']) == ('2026-03-04', {})
    assert beside['figures'] == {name: 1030, estimated: 700}
    assert beside['best'] == best | {estimated: {'value': 700, 'date': '2026-05-06'}}
    assert beside['reasons'] == {name: 'exact sums'}


def test_what_is_stored_of_a_step_is_near_the_best_or_has_a_reason():
    import cycles

    for program in json.loads(cycles.STORED.read_text())['programs']:
        comparison = cycles.compare(program, program['figures'])
        assert comparison.is_good(program), comparison.lines


@pytest.mark.parametrize(('grown', 'is_installed', 'only', 'status'), [
    (1.0, True, '', 0),
    (1.03, True, '', 1),
    (1.0, False, '', 0),  # others are compared
    (1.0, False, '--only=base-128-v5e:2x2,base-128-v4:2x2x1', 1),
])
def test_the_check_of_cycles_fails_on_what_is_slower_or_was_not_compared(
    monkeypatch, capsys, grown, is_installed, only, status
):
    import cycles

    def measured(programs, with_schedules):
        assert with_schedules
        for program in programs:
            is_v5e = program['topology'] == 'v5e:2x2'
            record = {name: (grown if is_v5e else 1) * x for name, x in program['figures'].items()}
            yield None if is_v5e and not is_installed else record

    monkeypatch.setattr(cycles, 'measure_all', measured)
    monkeypatch.setattr('sys.argv', ['cycles', *only.split()])
    assert cycles.main() == status
    printed = capsys.readouterr().out
    assert ('base-128-v5e:2x2: left out' in printed) != is_installed
    program = next(program for program in json.loads(cycles.STORED.read_text())['programs']
                   if cycles.name_of(program) == 'base-128-v5e:2x2')
    thousands = 1.03 * program['figures']['cycles_per_sequence'] / 1e3
    line = f'base-128-v5e:2x2, 64 rows a chip: {thousands:,.1f} thousand'
    assert (line in printed) == (grown > 1)


@pytest.mark.parametrize(('place', 'status'), [
    ('topology.open_topology', 0),  # no compiler: left out, others are compared
    ('measure.measure_train_step', 1),  # it does not fit
])
def test_a_step_that_does_not_fit_any_more_is_not_left_out(monkeypatch, capsys, place, status):
    import cycles

    def refusing(*arguments):
        raise InputError('no more')

    def measured(programs, with_schedules):
        yield cycles.measure(programs[0], False)
        yield from (program['figures'] for program in programs[1:])

    monkeypatch.setattr('bert_jax.tools.preflight.topology.open_topology', lambda name: None)
    monkeypatch.setattr('bert_jax.run_setup.open_mesh', lambda config, devices: None)
    monkeypatch.setattr(f'bert_jax.tools.preflight.{place}', refusing)
    monkeypatch.setattr(cycles, 'measure_all', measured)
    monkeypatch.setattr('sys.argv', ['cycles'])
    assert cycles.main() == status
    printed = capsys.readouterr().out
    assert ': no more\n' in printed
    assert (': left out' in printed) == (status == 0)


# A program of both kernels of attention, in two and six grid steps.
KERNELS = """
ENTRY %main (qkv: bf16[8,128,2304]) -> bf16[8,128,2304] {
  %qkv = bf16[8,128,2304]{2,1,0} parameter(0)
  %scaled = bf16[8,128,2304]{2,1,0} fusion(%qkv), kind=kLoop
  %jvp_attention_forward_grid_2x1_.1 = bf16[8,128,768]{2,1,0} custom-call(%scaled), custom_call_target="tpu_custom_call"
  ROOT %transpose_jvp_attention_backward_grid_2x3__.1 = bf16[8,128,2304]{2,1,0} custom-call(%scaled), custom_call_target="tpu_custom_call"
}
"""  # noqa: E501


@pytest.mark.parametrize(('forward', 'refusal'), [
    ((10, 100, 40), ''),
    ((10, 40, 100), 'has 100 bundles in loops of unknown length within its grid step, and 40 out'),
    (None, 'no schedule of jvp_attention_forward_grid_2x1_.1'),
])
def test_the_bundles_of_kernels_are_those_of_all_grid_steps(forward, refusal):
    import kernel_bundles

    from bert_jax.tools.preflight.hlo import CompiledText
    from bert_jax.tools.preflight.schedules import Schedule

    schedules = {
        'scaled': Schedule((7, 0, 0)),
        'transpose_jvp_attention_backward_grid_2x3__.1': Schedule((20, 50, 0)),
    }
    if forward:
        schedules['jvp_attention_forward_grid_2x1_.1'] = Schedule(forward)
    expected = pytest.raises(InputError, match=refusal) if refusal else contextlib.nullcontext()
    with expected:
        found = kernel_bundles.bundles_of_kernels(CompiledText(KERNELS), schedules)
        assert found == {'forward': 10 + 2 * 100, 'backward': 20 + 6 * 50}


def test_kernels_are_measured_by_the_row_and_with_schedules_without_those_of_steps(monkeypatch):
    from benchmarks import cycles, kernel_bundles

    folders = []
    monkeypatch.setattr(
        'bert_jax.tools.preflight.topology.open_topology', lambda name: ['device', 'another'])
    monkeypatch.setattr('bert_jax.tools.preflight.schedules.write_schedules', folders.append)
    monkeypatch.setattr(kernel_bundles, 'take_schedules', lambda folder: {'of': folder})
    monkeypatch.setattr(kernel_bundles, 'CompiledText', lambda text: text)
    monkeypatch.setattr(
        kernel_bundles, 'compiled_attention', lambda device, rows, length: (device, rows * length))

    def bundles(text, schedules):
        assert schedules == {'of': folders[0]}
        device, tokens = text
        assert device == 'device'
        return {'forward': 2 * tokens, 'backward': 3 * tokens}

    monkeypatch.setattr(kernel_bundles, 'bundles_of_kernels', bundles)
    program = stored_program('v5e:2x2', 'attention')
    figures = cycles.figures_of(cycles.measure(program, with_schedules=False))
    assert figures == {
        'forward_bundles_per_row_of_128': 256, 'backward_bundles_per_row_of_128': 384,
        'forward_bundles_per_row_of_512': 1024, 'backward_bundles_per_row_of_512': 1536}
    assert set(figures) == set(program['figures'])
    line = cycles.compare(program, figures).lines[0]
    assert line.startswith('attention-v5e:2x2: 256.0 bundles a row of 128, forward kernel (')


def test_chains_of_letters_count_and_know_both_sides():
    import dna_against_markov as dna

    letters = dna.drawn_letters(5000, seed=1)
    assert letters == dna.drawn_letters(5000, seed=1)
    digits = dna.digits_of(letters)
    chain = dna.fitted_chain(digits, 1)
    before = collections.Counter(letters[:-1])
    pairs = collections.Counter(zip(letters, letters[1:], strict=False))
    prior = dna.PRIOR
    counts = np.array([letters.count(base) for base in 'ACGT'])
    single = (counts + prior / 4) / (len(letters) + prior)
    for first, row in zip('ACGT', chain, strict=True):
        counts = np.array([pairs[first, second] for second in 'ACGT'])
        expected = (counts + prior * single) / (before[first] + prior)
        np.testing.assert_allclose(np.exp(row), expected)

    chain = dna.fitted_chain(digits, 2)
    window = digits[:9]
    found = dna.between_both_sides(chain, 2, window[None], middle=4, size=2)[0]
    products = {}
    for filled in itertools.product(range(4), repeat=2):
        x = [*window[:4], *filled, *window[6:]]
        products[filled] = np.prod(
            [np.exp(chain[4 * x[i - 2] + x[i - 1], x[i]]) for i in range(4, 8)])
    expected = products[tuple(window[4:6])] / sum(products.values())
    assert np.exp(found) == pytest.approx(expected)
