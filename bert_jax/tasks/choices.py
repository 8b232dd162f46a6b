"""Multiple choice: SWAG (BERT paper section 4.4), CODAH in its style, or the user's file.

Each choice is a sequence with one score; the loss is softmax cross-entropy over the choices of a
question. For SWAG (Zellers et al., 2018) and data sets like it, the file name tells the format:
- `.csv`: SWAG's, with quoting; `sent1` is the context, `sent2` begins all four endings.
- `.jsonl`: `startphrase` (both in one), `choices` and `answer`.
- `.tsv`: CODAH's (Chen et al., 2019), no header: category, prompt, four endings, answer.
- `.parquet`: the columns of `.csv`, as in the Hugging Face hub's data set allenai/swag.
If context and beginning come as one string, all of it is the context.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import table
from bert_jax.data.packing import Units
from bert_jax.data.pairs import Encode, make_sequences
from bert_jax.heads.classification import MultipleChoice
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, children
from bert_jax.runtime.hub import split_of
from bert_jax.tasks import labelled
from bert_jax.tasks.labelled import LabelledTask, ScoredModel
from bert_jax.tasks.metrics import accuracy
from bert_jax.tasks.sources import held_out, one_source, own_files
from bert_jax.tasks.texts import TextExamples, predictions_table, say_empty
from bert_jax.text.wordpiece import has_words

DEV_SHARE = 0.2  # of a data set without splits; CODAH's authors also score on a fifth
_FORMATS = ('.csv', '.jsonl', '.tsv', '.parquet')
_ENDINGS = [f'ending{i}' for i in range(4)]
# Arguments of `read_choices`, by format.
_SWAG: Mapping[str, Mapping[str, Any]] = {
    'csv': {'text': 'sent1', 'choices': _ENDINGS, 'label': 'label', 'beginning': 'sent2',
            'id_column': ''},
    'json': {'text': 'startphrase', 'choices': ['choices'], 'label': 'answer'},
    'tsv': {'text': 'prompt', 'choices': _ENDINGS, 'label': 'label',
            'headerless': ['category', 'prompt', *_ENDINGS, 'label']},
    'parquet': {'text': 'sent1', 'choices': _ENDINGS, 'label': 'label', 'beginning': 'sent2'},
}


def read_swag(source: str, split: str, *, max_malformed: float = 0.01) -> TextExamples:
    """Questions of a split of SWAG or of a data set in its style.

    A data set without splits is divided by a hash of the context, so that a question stays in its
    split when others are added or removed, and questions that share a context are in one split.

    Args:
      source: a folder with `train` and `val` or `dev` files; or one file, or a folder with one; or
        `hf:datasets/allenai/swag`, or a path in it.
      split: train | dev.
      max_malformed: see `read_choices`.

    Raises:
      InputError: no such folder or file, or a fault that `read_choices` finds.
    """
    if on_hub := split_of(source, 'regular/' + split.replace('dev', 'validation')):
        return read_swag_file(on_hub, max_malformed)
    path = source
    if not _is_one_file(source):
        tables = [x for x in children(source) if x.name.removesuffix('.gz').endswith(_FORMATS)]
        if len(tables) != 1 or tables[0].name.partition('.')[0] in ('train', 'val', 'dev', 'test'):
            stems = ['train'] if split == 'train' else ['val', 'dev']
            path = table.find_file(source, [stem + ending for stem in stems for ending in _FORMATS])
            return read_swag_file(path, max_malformed)
        path = str(tables[0])
    whole = read_swag_file(path, max_malformed)
    out = held_out(whole.texts[0], DEV_SHARE, path)
    return whole.take(np.flatnonzero(out == (split == 'dev')))


def _is_one_file(source: str) -> bool:
    return source.startswith('hf:') or as_path(source).is_file()


def read_swag_file(path: str, max_malformed: float = 0.01) -> TextExamples:
    """All questions of a file of SWAG or in its style; raises what `read_choices` raises."""
    arguments = _SWAG.get(table.format_of(path), _SWAG['tsv'])
    return read_choices(path, **arguments, max_malformed=max_malformed)


def read_choices(
    path: str, *, text: str, choices: Sequence[str], label: str, id_column: str | None = None,
    beginning: str = '', headerless: Sequence[str] = (), max_malformed: float = 0.01,
) -> TextExamples:
    """All questions of a file.

    Args:
      path: see `table.read_rows`.
      text: column of what comes before the choices.
      choices: columns of the choices; or one JSON field with a list of them, equally long in all
        rows.
      label: column that tells the right choice: the name of its column, or its index from 0.
      id_column: column of the ids; '': an unnamed column, which may be missing. None: row numbers.
      beginning: column of the text that all choices of a question begin with.
      headerless: see `table.read_rows`.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.

    Raises:
      InputError: a missing column, an unknown label, an id that occurs twice, too many malformed
        rows, a file that is empty or cannot be read.
    """
    num = 0 if len(choices) == 1 else len(choices)  # 0: as many as the first row has

    def parse(cells: list[Any]) -> tuple[str, list[str], str]:
        nonlocal num
        context, *endings = cells[: 1 + len(choices)]
        right, *others = cells[1 + len(choices) :]
        if len(choices) == 1 and isinstance(endings[0], list):
            (endings,) = endings
        num = num if num > 1 else len(endings)
        context, *endings = table.texts_of([context, *endings])
        if len(endings) != num or num < 2:
            raise table.Malformed(f'choices: {len(endings)}, where {max(num, 2)} are wanted')
        if beginning and others[0]:
            endings = [f'{others[0]} {ending}' for ending in endings]
        return context, endings, table.label_of(right)

    rows = table.read_table(
        path, [text, *choices, label, *([beginning] if beginning else [])], parse,
        id_column=id_column, max_malformed=max_malformed, optional=[''], headerless=headerless)
    contexts, endings, labels = zip(*rows.values, strict=True)
    # If columns are named 1, 2, 3, labels are names, not indices, whichever numbers this file has.
    places = list(map(str, range(num)))
    by_name = set(choices) & set(places) or set(labels) <= set(choices)
    known = {name: i for i, name in enumerate(choices if by_name else places)}
    for line, name in zip(rows.lines, labels, strict=True):
        if name not in known:
            raise InputError(f"{path}, line {line}: unknown label '{name}'; known are "
                             f"{', '.join(known)}: mend it")
    right = np.array([known[name] for name in labels], np.int32)
    return TextExamples([contexts, *zip(*endings)], right, rows.ids, path)


def choice_units(examples: TextExamples, encode: Encode, **limits: int) -> Units:
    """[CLS] context [SEP] ending [SEP] for each ending, as in section 4.4 of the BERT paper.

    `limits` are those of `make_sequences`.
    """
    contexts, *endings = examples.texts
    sequences = make_sequences(
        encode([context for context in contexts for _ in endings]),
        encode([text for texts in zip(*endings) for text in texts]), **limits)
    return Units(sequences, len(endings), labels={'labels': examples.labels})


def open_swag(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SWAG or a data set in its style, trained on train and scored on dev; see `read_swag`."""
    eval_source, max_malformed = config.data.eval_source, config.data.max_malformed

    def read(split: str) -> TextExamples:
        if split == 'dev' and eval_source:
            return read_swag_file(str(as_path(eval_source)), max_malformed)
        source = one_source(config, 'a folder of SWAG files, or one file in its style')
        if eval_source and not split_of(source, 'any') and _is_one_file(source):
            return read_swag_file(source, max_malformed)  # nothing is held out of it
        return read_swag(source, split, max_malformed=max_malformed)

    dev = read('dev')
    return _task(config, read('train') if scored is None else None, dev)


def open_choices(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Multiple choice on the user's files, whose columns the config names."""
    d = config.data
    choices = [name.strip() for name in d.choices.split(',') if name.strip()]
    if not choices:
        raise InputError(
            "config.data.choices='': name the columns of the choices, between commas, or the one "
            'of JSON lines that holds a list of them')

    def read(path: str) -> TextExamples:
        examples = read_choices(
            path, text=d.text, choices=choices, label=d.label, id_column=d.id or None,
            max_malformed=d.max_malformed)
        kept = np.flatnonzero([all(map(has_words, texts)) for texts in zip(*examples.texts)])
        say_empty(path, len(examples) - len(kept), len(examples))
        return examples.take(kept)

    train, dev = own_files(config, scored, read, lambda examples: examples.texts[0])
    return _task(config, train, dev)


def _task(config: ConfigDict, train: TextExamples | None, dev: TextExamples) -> LabelledTask:
    num = len(dev.texts) - 1
    if train is not None and len(train.texts) - 1 != num:
        raise InputError(f'{dev.source} has {num} choices a question, {train.source} '
                         f'{len(train.texts) - 1}: there must be as many')
    t = labelled.open_tokenization(config)

    def units(examples: TextExamples) -> Units:
        return choice_units(
            examples, t.encode, max_length=config.data.max_seq_length, **t.tokenizer.vocab.ends)

    def results(outputs: labelled.Outputs) -> labelled.Results:
        logits = outputs['logits']
        predictions = logits.argmax(axis=-1)
        return {'accuracy': accuracy(predictions, dev.labels),
                'loss': MultipleChoice.mean_loss(logits, dev.labels)}, {
            'dev_predictions.tsv': predictions_table(
                config.data.id, dev.ids, map(str, predictions))}

    return LabelledTask(
        config, t, train=None if train is None else units(train),
        evaluated=(labelled.EvalSet('', units(dev), results),), metric='accuracy',
        head='multiple_choice', arguments={'num_outputs': num},
        majority_baseline={'accuracy': 1 / num})
