"""Every knob with its default, and the checks that refuse values which cannot work.

A config file under `configs/` starts from `default_config()`, changes what it is about and returns
it; the command line changes single fields (`--config.train.steps=1000`). `validation.validate`
runs before anything is built. Below `experiment.py` nothing sees this object: functions there
take keyword arguments.

Durations (`train.steps`, `train.eval_every`, `train.save_every`, `train.log_every`,
`optimizer.warmup`, a phase's `steps`) are a number of steps, or a string with a unit:
`'10%'` (of all steps), `'3 epochs'` or `'100000 examples'`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

try:
    from ml_collections import ConfigDict, config_dict
except ModuleNotFoundError:  # a repository without its requirements: no door can go on
    sys.exit('error: ml_collections is not installed: python -m pip install .  (in the repository)')

from bert_jax.config.bert_config import COMPUTATION, OPTIONS
from bert_jax.config.tasks import TASK_FIELDS, task_fields
from bert_jax.runtime.errors import InputError, nearest

# Table 1 of the paper (base, large), the sizes of its Table 6, and the 24 miniatures that
# google-research/bert released in March 2020 (every L with every H, heads of 64, except that the
# release names its four best known tiny, mini, small and medium).
_MINIATURES = {
    f'L-{layers}_H-{hidden}_A-{hidden // 64}': (layers, hidden, hidden // 64)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}
MODEL_SIZES: Mapping[str, tuple[int, int, int]] = {
    'tiny': (2, 128, 2),
    'mini': (4, 256, 4),
    'small': (4, 512, 8),
    'medium': (8, 512, 8),
    'base': (12, 768, 12),
    'large': (24, 1024, 16),
    **_MINIATURES,
    'L-3_H-768_A-12': (3, 768, 12),
    'L-6_H-768_A-3': (6, 768, 3),
    'L-12_H-1024_A-16': (12, 1024, 16),
    'L-24_H-1024_A-16': (24, 1024, 16),
}

# Of the model what a checkpoint decides: fields without a default, which are the four of
# MODEL_SIZES, and fields with the value that they have without a checkpoint.
_DECIDED = tuple(o for o in OPTIONS if o.role != 'trains' and o.name != 'vocab_size')
_SIZES = tuple(o.name for o in _DECIDED if o.default is None)
_NUMERICS = {o.name: o.default for o in _DECIDED if o.default is not None}
# A table that may be cut, or go on with fresh rows; and what fine-tuning may add afresh.
_RESIZED = ('max_position_embeddings', 'bilstm')


def _free(default: Any = None) -> config_dict.FieldReference:
    """A field whose type is not fixed by its default (a duration, or a source or list of them)."""
    return config_dict.FieldReference(default, field_type=object)


def default_config(task: str = 'pretrain') -> ConfigDict:
    """The default of every field. A config file changes some of them.

    Args:
      task: its name; where it has fields of its own, they are in a section of their own. Whether
        there is such a task, `validation.validate` looks.
    """
    c = ConfigDict()
    c.task = task  # pretrain, synthetic (random batches, no data), or a name that a task registers
    c.seed = 0  # parameters, data order, masks and dropout all follow from it
    # Parameters to start from: a run directory, a TF1 checkpoint prefix, a Hugging Face folder.
    c.init_checkpoint = ''

    c.model = m = ConfigDict()
    # One of MODEL_SIZES, or empty: the size of init_checkpoint. The four sizes override it.
    m.name = 'base'
    m.vocab_size = 0  # 0: as many as the vocabulary has
    # What a model is; bert_config.py has the fields with their defaults. What a checkpoint decides
    # is empty, which means: as in init_checkpoint, else the default.
    for option in _DECIDED:
        m[option.name] = config_dict.placeholder(option.type)
    for option in OPTIONS:
        if option.role == 'trains':
            m[option.name] = option.default
    # How it is computed. dtype: auto is bfloat16 on TPU and GPU, else float32; scan_layers: one
    # compiled layer looped over instead of num_layers copies; remat: dots keeps the outputs of
    # matrix products for the backward pass, full the inputs of layers only, none everything;
    # attention: its implementation, auto chooses.
    for name, choices in COMPUTATION.items():
        m[name] = choices[0]

    c.data = d = ConfigDict()
    d.source = _free('docs:python')  # a source, or a list of (source, weight)
    d.eval_source = ''  # empty: held-out documents of `source`
    d.held_out = 0.01  # share of the documents that is held out for evaluation
    # A vocab.txt or SentencePiece .model; empty: that of init_checkpoint, or train one of
    # `vocab_size`.
    d.vocab_file = ''
    # Words to add to it, one a line: [unused] slots first, then new rows of the word table, which
    # start at the mean of the word's old pieces.
    d.add_tokens = ''
    d.vocab_size = 8000
    d.lowercase = config_dict.placeholder(bool)  # empty: as in init_checkpoint, else True
    # Token stores and trained vocabularies, kept by fingerprint; for several hosts a bucket or a
    # folder that all share.
    d.dir = '~/.cache/bert_jax'
    d.local_dir = '~/.cache/bert_jax'  # each host's copies of what is in such a place
    d.tfds_dir = ''  # prepared tensorflow-datasets; empty: their default place
    d.max_seq_length = 128
    d.max_predictions_per_seq = 20
    d.min_sentences = 1  # documents with fewer are left out
    d.masked_lm_prob = 0.15
    d.mask_rate = 0.8  # of the masked positions: [MASK]
    d.random_rate = 0.1  # a random piece; the rest keep theirs
    d.num_maskings = 0  # 0: new pairs and masks every epoch; 10: ten in turn, as the original
    d.short_seq_prob = 0.1
    d.random_next_prob = 0.5
    d.masking = 'pieces'  # what is masked together: pieces | words | ngrams | spans
    d.next_sentence = True  # False: one segment a row and no NSP loss
    # Downstream tasks. `source` is the folder of the benchmark, or your own file (for SQuAD also a
    # list of them); `eval_source` the file that is scored, empty: the folder's, or `held_out` of
    # your own.
    d.text, d.text_pair, d.label = 'text', '', 'label'  # columns of your own file
    d.choices = ''  # of multiple choice, between commas
    d.id = ''  # column that names each row in the predictions; empty: rows are counted from 0
    d.packing = True  # several examples a row; scores do not change
    d.max_malformed = 0.01  # share of unusable rows past which reading is an error

    c.train = t = ConfigDict()
    t.steps = _free(0)  # 0: the sum of the phases' steps
    t.batch_size = 256  # sequences a step, over all devices
    t.packed_rows = 0  # rows that a step's sequences share in pre-training; 0: a row each
    t.accumulation_steps = 1  # a step's batch is computed in this many parts
    t.eval_every = _free(0)  # 0: only at the end, where there always is one
    t.eval_batch_size = 256  # of pre-training; downstream sets are packed into batches
    t.max_eval_examples = 0  # of pre-training; 0: all held-out examples
    t.save_every = _free(0)  # 0: only at the end
    t.keep_checkpoints = 2
    t.log_every = _free(100)
    t.skip_steps = ()  # of pre-training: they train on rows that no step of their length has
    # A former run of this recipe (its directory or its metrics.jsonl): accuracies by step that are
    # far from its are told.
    t.reference = ''
    # Labelled texts (columns as below `data`): at each evaluation of pre-training a logistic
    # regression on the mean of the last layer is fitted to half of them, and scored on the others.
    t.probe = ''
    t.profile = ''  # '100..110': a trace of these steps, for TensorBoard's profile plugin

    c.optimizer = o = ConfigDict()
    # bert_adamw (no bias correction) | adamw | lamb | muon, or any optimizer of optax: lion, ...
    o.name = 'bert_adamw'
    o.arguments = ''  # of an optimizer of optax, such as 'b1=0.95, b2=0.98'
    o.learning_rate = 1e-4
    o.warmup = _free('1%')
    o.decay_power = 1.0  # polynomial decay to 0; 1 is linear
    o.decay_from = 'start'  # start: as if there were no warm-up, the original's | peak: after it
    o.layer_decay = 1.0  # the last layer has this share of the rate, the one before its square, ...
    o.weight_decay = 0.01  # not on biases and LayerNorm
    o.b1 = 0.9  # b1, b2 and eps are of the first four
    o.b2 = 0.999
    o.eps = 1e-6
    o.clip_norm = 1.0  # global gradient norm; 0: no clipping

    c.mesh = x = ConfigDict()
    # The batch, masters and moments are split over data x fsdp devices. Gradients are summed over
    # fsdp first: neighbours. -1: the devices that are left, fsdp an axis of the torus.
    x.data = -1
    x.fsdp = -1
    x.tensor = 1  # heads, intermediate and vocabulary split

    # Parts of the run: {steps, max_seq_length, max_predictions_per_seq, batch_size}; what a phase
    # leaves out comes from `train` and `data`. The optimizer's moments carry over from phase to
    # phase, and one learning-rate schedule spans them all, unless a phase names `learning_rate`
    # (and `warmup`): then its own schedule starts with it.
    c.phases = ()
    add_section(c, task)
    return c.lock()


def add_section(config: ConfigDict, task: str) -> None:
    """Gives the config the section of a task, with its defaults, if it has one."""
    own = task_fields(task)
    if own.section:
        config[own.section] = ConfigDict(dict(own.fields))


def fields(config: ConfigDict, prefix: str = '') -> list[str]:
    """Dotted paths of all fields, in their order of definition."""
    paths: list[str] = []
    for key in config:
        path = f'{prefix}{key}'
        value = config[key]
        paths += fields(value, path + '.') if isinstance(value, ConfigDict) else [path]
    return paths


def data_config_of(values: Mapping[str, Any]) -> ConfigDict:
    """A config with the task of a run and the data that it had; its model is a checkpoint's.

    Args:
      values: what the run's `config.json` says, by dotted name.
    """
    config = default_config(values['task'])
    config.model.name = ''
    sections = set(config) - set(default_config())  # the task's own
    known = set(fields(config))
    with config.unlocked():
        config.update_from_flattened_dict({
            name: value for name, value in values.items()
            if name in known and name.partition('.')[0] in ('data', *sections)
        })
    return config


def all_fields() -> list[str]:
    """Dotted paths of all fields, those of all tasks among them."""
    config = default_config()
    paths = fields(config)
    with config.unlocked():
        for task in TASK_FIELDS:
            add_section(config, task)
    return paths + [path for path in fields(config) if path not in paths]


def model_fields(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The fields of `BertConfig`, of a completed config and a vocabulary's size."""
    stated = {option.name: config.model[option.name] for option in OPTIONS}
    return stated | model_sizes(config) | {'vocab_size': config.model.vocab_size or vocab_size}


def model_sizes(config: ConfigDict) -> dict[str, int]:
    """num_layers, hidden_size, num_heads, intermediate_size of `model`, named or overridden."""
    m = config.model
    given = (m.num_layers, m.hidden_size, m.num_heads, m.intermediate_size)
    if not m.name and None not in given:
        return dict(zip(_SIZES, given, strict=True))
    name = m.name.lower()
    name = name.removeprefix('bert-').removeprefix('bert_').removeprefix('uncased_')
    known = {key.lower(): value for key, value in MODEL_SIZES.items()}
    if name not in known:
        raise InputError(
            f'config.model.name={m.name!r} is unknown: {nearest(m.name, list(MODEL_SIZES))}'
        )
    layers, hidden, heads = known[name]
    hidden = hidden if m.hidden_size is None else m.hidden_size
    return {
        'num_layers': layers if m.num_layers is None else m.num_layers,
        'hidden_size': hidden,
        'num_heads': heads if m.num_heads is None else m.num_heads,
        'intermediate_size': 4 * hidden if m.intermediate_size is None else m.intermediate_size,
    }


def complete(config: ConfigDict, published: Any = None) -> ConfigDict:
    """A copy in which nothing is left empty that `init_checkpoint` decides.

    Args:
      config: a whole config.
      published: `weights` of `init_checkpoint`, or None where there is none.

    Raises:
      InputError: the config contradicts the weights, or there is nothing that says the size.
    """
    c = ConfigDict(config.copy_and_resolve_references())
    c.unlock()
    if published is None:
        if not c.model.name and None in (c.model[size] for size in _SIZES):
            raise InputError(
                'config.model.name is empty, which means the size of config.init_checkpoint: set '
                "one of them, such as --config.init_checkpoint=DIR or --config.model.name='base'"
            )
        for field, value in _NUMERICS.items():
            if c.model[field] is None:
                c.model[field] = value
        c.data.lowercase = c.data.lowercase is not False
        return c.lock()
    if c.model.name:
        c.model.update(model_sizes(c))
    for option in _DECIDED:
        theirs, ours = published.model[option.name], c.model[option.name]
        if ours is None:
            c.model[option.name] = theirs
        elif option.role == 'shape' and ours != theirs and option.name not in _RESIZED:
            raise InputError(
                f'config.model.{option.name}={ours}'
                + (f' (of config.model.name={c.model.name!r})' if c.model.name else '')
                + f', but {published.source} has {theirs}: leave '
                + ('config.model.name empty' if option.name in _SIZES else 'it out')
                + " to take the checkpoint's"
            )
    if c.data.lowercase is None:
        c.data.lowercase = published.lowercase
    if not c.data.vocab_file and published.vocab_file is not None:
        c.data.vocab_file = str(published.vocab_file)
    return c.lock()


def is_complete(config: ConfigDict) -> bool:
    """Whether nothing of the model is left to `init_checkpoint`."""
    needed = _NUMERICS if config.model.name else (*_SIZES, *_NUMERICS)
    return all(config.model[field] is not None for field in needed)


def get_field(config: ConfigDict, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for part in path.split('.'):
        value = value[part]
    return value
