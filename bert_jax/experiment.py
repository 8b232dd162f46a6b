"""The one place that turns a config into mesh, task, data, state and steps, and runs them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.data.examples import Examples, Mixture, RecordExamples
from bert_jax.data.masking import MaskingRates
from bert_jax.data.pretrain import PretrainExamples, Recipe, SpecialIds
from bert_jax.data.synthetic import SyntheticExamples, plain_batches
from bert_jax.errors import InputError
from bert_jax.model.flops import peak_flops
from bert_jax.model.layers import BertConfig
from bert_jax.optim import Schedule, ScheduleSegment, make_optimizer, make_schedule
from bert_jax.sharding import Layout, Mesh, local_rows, make_mesh, to_global
from bert_jax.tasks.base import Task
from bert_jax.tasks.pretrain import Pretraining
from bert_jax.text.load import load_tokenizer
from bert_jax.text.training import train_wordpiece
from bert_jax.text.vocab import write_vocab
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.evaluate import evaluate
from bert_jax.train.loop import Cadence, Phase, train
from bert_jax.train.report import Report, count, write_beside
from bert_jax.train.state import abstract_state, init_state, num_params
from bert_jax.train.step import make_eval_step, make_train_step

_TASKS = ('pretrain', 'synthetic')
_VOCABULARY_SAMPLE_BYTES = 200_000_000
# Fields that may change between a run and its continuation without changing what it computes.
_FREE_TO_CHANGE = ('train.eval_every', 'train.save_every', 'train.log_every',
                   'train.keep_checkpoints', 'train.max_eval_examples', 'data.dir',
                   'data.tfds_dir', 'mesh.data', 'mesh.fsdp', 'mesh.tensor')


def say(line: str) -> None:
    """Prints on the first process only."""
    if jax.process_index() == 0:
        print(line, flush=True)


def run(config: ConfigDict, workdir: Path, should_stop: Callable[[int], bool]) -> dict[str, float]:
    """Trains (or goes on training) a run and evaluates it.

    Args:
      config: as read from the config file and the command line.
      workdir: the run directory; a run found there goes on from its newest checkpoint.
      should_stop: polled with the step; true means save and leave.

    Returns:
      The final held-out metrics, with `step`.

    Raises:
      InputError: bad configuration or data.
      train.loop.Diverged, train.loop.Stopped: see there.
    """
    if config.task not in _TASKS:
        raise InputError(
            f'config.task={config.task!r} is unknown: {config_lib.nearest(config.task, _TASKS)}'
        )
    config_lib.validate(config)
    config_lib.validate(config, jax.device_count())
    mesh = make_mesh(
        config_lib.mesh_data(config, jax.device_count()), config.mesh.fsdp, config.mesh.tensor
    )
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh '
        + ' x '.join(f'{name} {size}' for name, size in mesh.shape.items()))

    data = open_data(config)
    phases = config_lib.phases(config, num_examples=data.first_epoch(config))
    total = sum(phase['steps'] for phase in phases)
    task: Task = Pretraining(
        model_config(config, data.vocab_size, mesh), next_sentence=config.data.next_sentence
    )
    schedule = make_schedule(schedule_segments(config, phases), config.optimizer.decay_power)
    optimizer = make_optimizer(
        config.optimizer.name, schedule, weight_decay=config.optimizer.weight_decay,
        b1=config.optimizer.b1, b2=config.optimizer.b2, eps=config.optimizer.eps,
    )
    resolved = resolve(config, phases, data.vocab_size)
    prepare_workdir(workdir, resolved, data.vocab_path)

    checkpoints = Checkpoints(workdir / 'checkpoints', config.train.keep_checkpoints)
    state = checkpoints.restore(abstract_state(task, optimizer, mesh))
    if state is None:
        state = init_state(task, optimizer, mesh, config.seed)
    else:
        say(f'resuming at step {int(state.step):,} from {workdir}')
    start = int(state.step)
    say(f'model {config.model.name}: {count(num_params(state))} parameters; {total:,} steps')

    eval_step = make_eval_step(task, mesh)
    runs = []
    first = 0
    for phase in phases:
        runs.append(_phase(config, data, phase, first, mesh, task, eval_step))
        first += phase['steps']

    def steps_of(field: str) -> int:
        return config_lib.parse_duration(
            config_lib.get_field(config, field), field, batch_size=phases[0]['batch_size'],
            num_examples=data.first_epoch(config), total=total,
        )

    peak = peak_flops(jax.devices()[0].device_kind)
    report = Report(workdir, jax.process_index() == 0, start)
    train_step = make_train_step(
        task, optimizer, schedule, mesh, seed=config.seed, clip_norm=config.optimizer.clip_norm,
        accumulation_steps=config.train.accumulation_steps,
    )
    try:
        state, metrics = train(
            task, state, train_step, runs,
            Cadence(
                steps_of('train.log_every'), steps_of('train.eval_every'),
                steps_of('train.save_every'),
            ),
            checkpoints, report,
            peak_flops=peak * jax.device_count() if peak else None, should_stop=should_stop,
        )
    finally:
        checkpoints.close()
        report.draw()
        report.close()
    return {'step': int(state.step), **{f'eval/{k}': v for k, v in metrics.items()}}


def _phase(
    config: ConfigDict, data: Data, phase: dict[str, Any], first: int, mesh: Mesh, task: Task,
    eval_step: Any,
) -> Phase:
    batch_size, length = phase['batch_size'], phase['max_seq_length']
    slots = phase['max_predictions_per_seq']
    # Made when first asked for: planning the epochs of a phase that is over would be wasted.
    examples = functools.cache(lambda: data.training(length, slots))
    held_out = functools.cache(lambda: data.held_out(length, slots))

    def batches(first_step: int) -> Iterator[Any]:
        local = local_rows(mesh, batch_size)
        for batch in data.batches(
            examples(), batch_size=batch_size, local=local, first_step=first_step,
            num_steps=phase['steps'] - first_step,
        ):
            yield to_global(mesh, batch, batch_size, local)

    def evaluate_phase(params: Any) -> dict[str, float]:
        size = config.train.eval_batch_size
        local = local_rows(mesh, size)
        rows = held_out()
        num = rows.num_frozen() if isinstance(rows, Mixture) else rows.num_examples
        if config.train.max_eval_examples:
            num = min(num, config.train.max_eval_examples)
        return evaluate(task, eval_step, params, (
            to_global(mesh, batch, size, local)
            for batch in data.eval_batches(rows, batch_size=size, local=local, num_examples=num)
        ))

    return Phase(
        start=first, steps=phase['steps'], batch_size=batch_size, batches=batches,
        evaluate=evaluate_phase, flops_per_row=task.flops(length, slots),
        name=f'length {length}, batch {batch_size}',
    )


def schedule_segments(config: ConfigDict, phases: list[dict[str, Any]]) -> list[ScheduleSegment]:
    """One segment for the whole run, or one from each phase that names its learning rate on."""
    starts = np.concatenate([[0], np.cumsum([p['steps'] for p in phases])]).tolist()
    own = [i for i, phase in enumerate(phases) if phase['learning_rate'] is not None]
    segments = []
    for i in ([] if 0 in own else [0]) + own:
        end = starts[min((j for j in own if j > i), default=len(phases))]
        steps = end - starts[i]
        if phases[i]['learning_rate'] is None:
            rate = config.optimizer.learning_rate
            warmup = config_lib.parse_duration(
                config.optimizer.warmup, 'optimizer.warmup', batch_size=phases[i]['batch_size'],
                num_examples=None, total=steps,
            )
        else:
            rate, warmup = phases[i]['learning_rate'], phases[i]['warmup']
        segments.append(ScheduleSegment(starts[i], steps, rate, warmup))
    return segments


def model_config(config: ConfigDict, vocab_size: int, mesh: Mesh) -> BertConfig:
    """What the model is, from the config and the vocabulary's size."""
    m = config.model
    if m.vocab_size and m.vocab_size < vocab_size:
        raise InputError(
            f'config.model.vocab_size={m.vocab_size} is less than the vocabulary has '
            f'({vocab_size}): leave it 0 to take its size'
        )
    dtype = m.dtype
    if dtype == 'auto':
        dtype = 'float32' if jax.devices()[0].platform == 'cpu' else 'bfloat16'
    return BertConfig(
        vocab_size=m.vocab_size or vocab_size,
        **config_lib.model_sizes(config),
        max_position_embeddings=m.max_position_embeddings,
        type_vocab_size=m.type_vocab_size,
        hidden_act=m.hidden_act,
        layer_norm_eps=m.layer_norm_eps,
        initializer_range=m.initializer_range,
        hidden_dropout=m.hidden_dropout,
        attention_dropout=m.attention_dropout,
        dtype=dtype,
        scan_layers=m.scan_layers,
        remat=m.remat,
        layout=Layout(mesh),
    )


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in, as written to `config.json`."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved


def prepare_workdir(workdir: Path, resolved: dict[str, Any], vocab_path: Path | None) -> None:
    """Writes `config.json` and the vocabulary; says what differs from the run that is there.

    Raises:
      InputError: the directory cannot be used.
    """
    if jax.process_index():
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f'--workdir={workdir}: {error.strerror}') from error
    path = workdir / 'config.json'
    if path.exists() and any((workdir / 'checkpoints').glob('[0-9]*')):
        try:
            old = _flat(json.loads(path.read_text(encoding='utf-8')))
        except ValueError as error:
            raise InputError(f'{path} is not JSON ({error}): give another --workdir') from error
        new = _flat(resolved)
        for name in sorted(set(old) | set(new)):
            if old.get(name) == new.get(name) or name in _FREE_TO_CHANGE:
                continue
            if name.startswith('model.') and name != 'model.dtype':
                raise InputError(
                    f'{workdir} holds a run with {name}={old.get(name)!r}, the config says '
                    f'{new.get(name)!r}: give another --workdir, or the config of that run'
                )
            say(f'note: {name} was {old.get(name)!r} in this run so far, now {new.get(name)!r}')
    write_beside(path, json.dumps(resolved, indent=2) + '\n')
    if vocab_path is not None:
        name = 'vocab.model' if vocab_path.suffix == '.model' else 'vocab.txt'
        beside = workdir / f'{name}.tmp'
        beside.write_bytes(vocab_path.read_bytes())
        beside.replace(workdir / name)


def _flat(tree: dict[str, Any], prefix: str = '') -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f'{prefix}{key}.') if isinstance(value, dict) else {prefix + key: value}
    return flat


class Data:
    """Rows for training and evaluation, and the vocabulary they are made with."""

    vocab_size: int
    vocab_path: Path | None = None

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        raise NotImplementedError

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        raise NotImplementedError

    def first_epoch(self, config: ConfigDict) -> int | None:
        """Examples an epoch of the first phase, where a duration asks for it."""
        durations = [
            config.train.steps, config.train.eval_every, config.train.save_every,
            config.train.log_every, *(phase.get('steps', '') for phase in config.phases),
        ]
        if not any('epoch' in str(d) for d in durations):
            return None
        first = dict(config.phases[0]) if config.phases else {}
        return self.training(
            first.get('max_seq_length', config.data.max_seq_length),
            first.get('max_predictions_per_seq', config.data.max_predictions_per_seq),
        ).num_examples

    def batches(self, examples: Examples, **kwargs: Any) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline  # noqa: PLC0415 - needs TensorFlow

        pipeline.hide_accelerators()
        return pipeline.train_batches(examples, **kwargs)

    def eval_batches(self, examples: Examples, **kwargs: Any) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline  # noqa: PLC0415 - needs TensorFlow

        return pipeline.eval_batches(examples, **kwargs)


class SyntheticData(Data):
    """Random rows; needs neither files nor TensorFlow."""

    def __init__(self, config: ConfigDict):
        self.vocab_size = config.model.vocab_size or config.data.vocab_size
        self._seed = config.seed

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> SyntheticExamples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, seed=self._seed,
        )

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> SyntheticExamples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, num_examples=256,
            seed=self._seed + 1,
        )

    def batches(self, examples: Examples, **kwargs: Any) -> Iterator[dict[str, np.ndarray]]:
        return plain_batches(examples, **kwargs)

    def eval_batches(self, examples: Examples, **kwargs: Any) -> Iterator[dict[str, np.ndarray]]:
        return plain_batches(
            examples, batch_size=kwargs['batch_size'], local=kwargs['local'], first_step=0,
            num_steps=max(1, kwargs['num_examples'] // kwargs['batch_size']),
        )


class TextData(Data):
    """Rows from text (through token stores) and from ready-made records."""

    def __init__(self, config: ConfigDict):
        from bert_jax.data.corpus import Source, open_source  # noqa: PLC0415 - needs TensorFlow
        from bert_jax.data.records import RecordFiles  # noqa: PLC0415
        from bert_jax.data.store import build_store  # noqa: PLC0415

        d = config.data
        self._config = config
        self._cache = Path(d.dir).expanduser()
        named = weighted_sources(d.source)
        specs = [spec for spec, _ in named] + ([d.eval_source] if d.eval_source else [])
        opened = {
            spec: None if is_records(spec) else open_source(spec, d.tfds_dir) for spec in specs
        }
        texts: list[Source] = [source for source in opened.values() if source is not None]
        self.vocab_path = Path(d.vocab_file).expanduser() if d.vocab_file else None
        if self.vocab_path is None:
            if not texts or opened[named[0][0]] is None:
                raise InputError(
                    'config.data.vocab_file is empty, and there is no text to train a vocabulary '
                    'on: give the vocab.txt that the records were made with'
                )
            self.vocab_path = self._trained_vocabulary(
                [opened[spec] for spec, _ in named if opened[spec] is not None]
            )
        tokenizer = load_tokenizer(self.vocab_path, d.lowercase)
        vocab = tokenizer.vocab
        self.vocab_size = len(vocab)
        self._special = SpecialIds(
            len(vocab), vocab.cls_id, vocab.sep_id, vocab.mask_id, vocab.is_continuation
        )

        def open_rows(spec: str) -> Any:
            source = opened[spec]
            if source is None:
                return RecordFiles.open(spec.removeprefix('tfrecord:'), self._cache)
            return build_store(source, tokenizer, self._cache, jax.process_index() == 0)

        self._sources = [(spec, weight, open_rows(spec)) for spec, weight in named]
        self._eval = open_rows(d.eval_source) if d.eval_source else None

    def _trained_vocabulary(self, sources: list[Any]) -> Path:
        from bert_jax.data.corpus import sample_texts  # noqa: PLC0415 - needs TensorFlow

        d = self._config.data
        identity = [source.fingerprint() for source in sources] + [d.vocab_size, d.lowercase, 1]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        path = self._cache / 'vocabularies' / f'{name}.txt'
        if not path.exists():
            say(f'training a vocabulary of {d.vocab_size:,} pieces on '
                + ', '.join(source.spec for source in sources))
            share = _VOCABULARY_SAMPLE_BYTES // len(sources)
            tokens = train_wordpiece(
                (text for source in sources for text in sample_texts(source, share)),
                d.vocab_size, d.lowercase,
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_vocab(path, tokens)
        say(f'vocabulary: {path}')
        return path

    def _recipe(self, max_seq_length: int, max_predictions_per_seq: int) -> Recipe:
        d = self._config.data
        return Recipe(
            max_seq_length=max_seq_length, max_predictions_per_seq=max_predictions_per_seq,
            short_seq_prob=d.short_seq_prob, random_next_prob=d.random_next_prob,
            next_sentence=d.next_sentence, min_sentences=d.min_sentences,
            num_maskings=d.num_maskings,
            masking=MaskingRates(
                d.masked_lm_prob, d.mask_rate, d.random_rate, d.whole_word_mask
            ),
        )

    def _documents(self, store: Any, held_out: bool) -> np.ndarray:
        if self._eval is not None:  # evaluation has text of its own: train on all
            return store.documents
        fraction = self._config.data.held_out
        if fraction == 0 and held_out:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source'
            )
        needed = 2 if self._config.data.next_sentence else 1
        return store.split_held_out(fraction, needed)[1 if held_out else 0]

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        seed = self._config.seed
        parts: list[Examples] = []
        for i, (spec, _, rows) in enumerate(self._sources):
            if is_records(spec):
                part: Examples = RecordExamples(
                    rows, seed + i, max_predictions_per_seq, name=spec
                )
                if part.spec['input_ids'].shape != (max_seq_length,):
                    raise InputError(
                        f'{spec} has records of {rows.max_seq_length} tokens, the phase has '
                        f'max_seq_length={max_seq_length}: set that to {rows.max_seq_length}'
                    )
            else:
                part = PretrainExamples(
                    rows, self._documents(rows, held_out=False),
                    self._recipe(max_seq_length, max_predictions_per_seq), self._special,
                    seed + i, name=spec,
                )
            parts.append(part)
        examples = parts[0]
        if len(parts) > 1:
            examples = Mixture(parts, [weight for _, weight, _ in self._sources], seed)
        say(f'training examples an epoch at length {max_seq_length}: {examples.num_examples:,}')
        return examples

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        recipe = self._recipe(max_seq_length, max_predictions_per_seq)
        seed = 0x5EED  # of its own, so that every run of a corpus is judged on the same rows
        if self._eval is not None:
            if is_records(self._config.data.eval_source):
                return RecordExamples(self._eval, seed)
            return PretrainExamples(
                self._eval, self._eval.documents, recipe, self._special, seed,
                name=self._config.data.eval_source,
            )
        texts = [(spec, store) for spec, _, store in self._sources if not is_records(spec)]
        if not texts:
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text'
            )
        parts = [
            PretrainExamples(
                store, self._documents(store, held_out=True), recipe, self._special, seed,
                name=f'the held-out part of {spec}',
            )
            for spec, store in texts
        ]
        return parts[0] if len(parts) == 1 else Mixture(parts, [1.0] * len(parts), seed)


def is_records(spec: str) -> bool:
    """Whether a source is Google's ready-made TFRecords."""
    return spec.startswith('tfrecord:') or spec.endswith(('.tfrecord', '.tfrecords'))


def weighted_sources(source: Any) -> list[tuple[str, float]]:
    """`data.source` as (source, weight) pairs.

    Raises:
      InputError: it is neither a string nor a list of (source, weight).
    """
    if isinstance(source, str) and source:
        return [(source, 1.0)]
    pairs = []
    for item in source if isinstance(source, (list, tuple)) else [None]:
        if isinstance(item, str):
            item = (item, 1.0)
        if not (isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str)
                and isinstance(item[1], (int, float)) and item[1] > 0):
            raise InputError(
                f"config.data.source={source!r}: write a source, or a list of (source, weight) "
                "such as [('wiki.txt', 3), ('books.txt', 1)] with weights above 0"
            )
        pairs.append((item[0], float(item[1])))
    if not pairs:
        raise InputError('config.data.source is empty: name a source, such as a glob of text files')
    return pairs


def open_data(config: ConfigDict) -> Data:
    """The data of the config's task."""
    return SyntheticData(config) if config.task == 'synthetic' else TextData(config)
