"""Sources of a run -> rows for training and evaluation: vocabulary, token stores, records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from bert_jax.data.examples import (
    Examples,
    Mixture,
    RecordExamples,
    Rows,
    SyntheticExamples,
    eval_batch,
    plain_batches,
)
from bert_jax.data.prepared import Places, share_added_words, share_store, share_vocabulary
from bert_jax.data.pretrain import (
    PretrainExamples,
    Recipe,
    SpecialIds,
    frequency_loss,
    repeated_share,
)
from bert_jax.data.store import TokenStore
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.runtime.process import loading_tensorflow
from bert_jax.text import check_known, load_tokenizer

_LOOKED_AT = 1_000_000  # pieces of a text, to see whether its vocabulary knows them
# Evaluation rows are drawn with a seed of their own, so that all runs are judged on the same rows.
_EVAL_SEED = 0x5EED


class Data(Protocol):
    """Rows for training and evaluation, by length and prediction slots of a phase."""

    vocab_size: int
    vocab_path: Path | None

    def identity(self) -> dict[str, str]:
        """What all hosts must have read alike, by name."""

    def frequency_loss(self) -> float | None:
        """Masked-LM loss of guessing by frequency, where that can be known."""

    def repeated_share(self) -> float:
        """Share of the sentences of the text that is trained on which are repeats."""

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples: ...

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples: ...

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]: ...

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]: ...


class SyntheticData:
    """Random rows; needs neither files nor TensorFlow."""

    vocab_path: Path | None = None

    def __init__(self, vocab_size: int, seed: int):
        self.vocab_size, self._seed = vocab_size, seed

    def identity(self) -> dict[str, str]:
        return {}

    def frequency_loss(self) -> float | None:
        return None

    def repeated_share(self) -> float:
        return 0.0

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, seed=self._seed,
        )

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        return SyntheticExamples(
            vocab_size=self.vocab_size, max_seq_length=max_seq_length,
            max_predictions_per_seq=max_predictions_per_seq, num_examples=256,
            seed=self._seed + 1,
        )

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        return plain_batches(examples, batch_size, local, range(first_step, first_step + num_steps))

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]:
        for step in range(-(-num_examples // batch_size)):
            yield eval_batch(examples, step, batch_size, local, num_examples)


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """What text is read and how; see `config.default_config` for each.

    `recipe` is that of any phase: its lengths are replaced by each phase's own.
    """

    sources: tuple[tuple[str, float], ...]
    eval_source: str
    held_out: float
    vocab_file: str
    add_tokens: str
    vocab_size: int
    lowercase: bool
    shared_dir: str
    local_dir: str
    tfds_dir: str
    recipe: Recipe
    max_positions: int
    seed: int
    progress: bool


class TextData:
    """Rows from text (through token stores) and from ready-made records."""

    def __init__(self, options: TextOptions):
        """Opens (and where needed builds) everything but the epochs' plans.

        Raises:
          InputError: whatever is wrong with the sources or the vocabulary.
        """
        # Here and below: TensorFlow is loaded only where text is read.
        with loading_tensorflow('pre-training from text'):
            from bert_jax.data.pipeline import hide_accelerators
            from bert_jax.data.records import RecordFiles

        hide_accelerators()  # before TensorFlow does anything: afterwards it refuses
        self._options = o = options
        specs = [spec for spec, _ in o.sources] + ([o.eval_source] if o.eval_source else [])
        texts = _open_texts([spec for spec in specs if not is_records(spec)], o.tfds_dir)
        self.places = places = Places.choose(o.shared_dir, o.local_dir)
        self.vocab_path = files.as_path(o.vocab_file) if o.vocab_file else None
        records = [spec for spec in specs if is_records(spec)]
        if records and o.add_tokens:
            raise InputError(
                f'config.data.add_tokens={o.add_tokens}, but the text in {records[0]} is cut into '
                'pieces already: give the text itself, or leave config.data.add_tokens empty'
            )
        if self.vocab_path is None:
            if records:
                raise InputError(
                    f'config.data.vocab_file is empty, but the ids in {records[0]} are of some '
                    'vocabulary: give the vocab.txt that the records were made with'
                )
            self.vocab_path = share_vocabulary(
                [texts[spec] for spec, _ in o.sources], o.vocab_size, o.lowercase, places,
                self._say,
            )
        self.vocab_path = share_added_words(
            self.vocab_path, o.add_tokens, o.lowercase, places
        )
        tokenizer = load_tokenizer(self.vocab_path, o.lowercase)
        vocab = tokenizer.vocab
        self.vocab_size = len(vocab)
        self._tokenizer_fingerprint = tokenizer.fingerprint
        self._special = SpecialIds(
            len(vocab), vocab.cls_id, vocab.sep_id, vocab.mask_id, vocab.is_continuation
        )

        def open_rows(spec: str) -> Any:
            if spec in texts:
                store = share_store(texts[spec], tokenizer, places, o.progress)
                check_known(store.tokens[:_LOOKED_AT], vocab, spec, self.vocab_path)
                return store
            return RecordFiles.open(spec.removeprefix('tfrecord:'), places.local)

        self._sources = [(spec, weight, open_rows(spec)) for spec, weight in o.sources]
        self._eval = open_rows(o.eval_source) if o.eval_source else None

    def _say(self, line: str) -> None:
        if self._options.progress:
            print(line, flush=True)

    def _documents(self, store: Any, held_out: bool) -> np.ndarray:
        o = self._options
        if self._eval is not None:  # evaluation has text of its own: train on all
            return store.documents
        if o.held_out == 0 and held_out:
            raise InputError(
                'config.data.held_out=0 leaves nothing to evaluate on: set it, or '
                'config.data.eval_source'
            )
        needed = 2 if o.recipe.next_sentence else 1
        return store.split_held_out(o.held_out, needed)[1 if held_out else 0]

    def _text_examples(
        self, store: Any, documents: np.ndarray, length: int, slots: int, seed: int, name: str
    ) -> PretrainExamples:
        recipe = dataclasses.replace(
            self._options.recipe, max_seq_length=length, max_predictions_per_seq=slots
        )
        return PretrainExamples(store, documents, recipe, self._special, seed, name)

    @property
    def stores(self) -> dict[str, TokenStore]:
        """The token store of each source of text."""
        rows = {spec: rows for spec, _, rows in self._sources}
        if self._eval is not None:
            rows[self._options.eval_source] = self._eval
        return {spec: store for spec, store in rows.items() if not is_records(spec)}

    def identity(self) -> dict[str, str]:
        result = {'vocabulary': self._tokenizer_fingerprint}
        for spec, _, rows in self._sources:
            result[f'content of {spec}'] = (
                f'{len(rows)} records' if is_records(spec) else rows.fingerprint
            )
            if self._eval is None and not is_records(spec):
                held_out = self._documents(rows, held_out=True)
                result[f'held-out documents of {spec}'] = str(len(held_out))
        return result

    def frequency_loss(self) -> float | None:
        if any(is_records(spec) for spec, _, _ in self._sources):
            return None
        return frequency_loss(
            [(store, weight) for _, weight, store in self._sources], self.vocab_size)

    def repeated_share(self) -> float:
        return max((repeated_share(store, self._documents(store, held_out=False))
                    for spec, _, store in self._sources if not is_records(spec)), default=0.0)

    def training(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        parts: list[Examples] = []
        for i, (spec, _, rows) in enumerate(self._sources):
            seed = self._options.seed + i
            if not is_records(spec):
                parts.append(self._text_examples(
                    rows, self._documents(rows, held_out=False), max_seq_length,
                    max_predictions_per_seq, seed, spec,
                ))
                continue
            if rows.max_seq_length != max_seq_length:
                raise InputError(
                    f'{spec} has records of {rows.max_seq_length} tokens, the phase has '
                    f'max_seq_length={max_seq_length}: set that to {rows.max_seq_length}'
                )
            parts.append(RecordExamples(rows, seed, max_predictions_per_seq, name=spec))
        examples = parts[0]
        if len(parts) > 1:
            weights = [weight for _, weight, _ in self._sources]
            examples = Mixture(parts, weights, self._options.seed)
        self._say(f'training examples an epoch at length {max_seq_length}: '
                  f'{examples.num_examples:,}')
        return examples

    def held_out(self, max_seq_length: int, max_predictions_per_seq: int) -> Examples:
        lengths = (max_seq_length, max_predictions_per_seq)
        if self._eval is not None:
            name = self._options.eval_source
            if is_records(name):
                if self._eval.max_seq_length > self._options.max_positions:
                    raise InputError(
                        f'config.data.eval_source={name} has records of '
                        f'{self._eval.max_seq_length} tokens, longer than the position table '
                        f'(config.model.max_position_embeddings={self._options.max_positions})'
                    )
                return RecordExamples(self._eval, _EVAL_SEED)
            return self._text_examples(
                self._eval, self._eval.documents, *lengths, _EVAL_SEED, name
            )
        texts = [(spec, store) for spec, _, store in self._sources if not is_records(spec)]
        if not texts:
            raise InputError(
                'records have no documents to hold out: set config.data.eval_source to other '
                'records or text'
            )
        parts = [
            self._text_examples(
                store, self._documents(store, held_out=True), *lengths, _EVAL_SEED,
                f'the held-out part of {spec}',
            )
            for spec, store in texts
        ]
        return parts[0] if len(parts) == 1 else Mixture(parts, [1.0] * len(parts), _EVAL_SEED)

    def train_batches(
        self, examples: Rows, *, batch_size: int, local: np.ndarray, first_step: int,
        num_steps: int,
    ) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline

        return pipeline.train_batches(
            examples, batch_size=batch_size, local=local, first_step=first_step,
            num_steps=num_steps,
        )

    def eval_batches(
        self, examples: Examples, *, batch_size: int, local: np.ndarray, num_examples: int
    ) -> Iterator[dict[str, np.ndarray]]:
        from bert_jax.data import pipeline

        return pipeline.eval_batches(
            examples, batch_size=batch_size, local=local, num_examples=num_examples
        )


def _open_texts(specs: list[str], tfds_dir: str) -> dict[str, Any]:
    """The sources of text by name. The first host's are read; others that have them compare.

    Raises:
      InputError: there is no such text on the first host, or another one on some other host.
    """
    from bert_jax.data.corpus import open_source

    texts: dict[str, Any] = dict.fromkeys(specs)
    for spec in specs:
        # A data set of tensorflow-datasets might be downloaded just to be compared.
        if hosts.first() or not spec.startswith('tfds:'):
            try:
                texts[spec] = open_source(spec, tfds_dir)
            except InputError:
                if hosts.first():
                    raise
    if hosts.count() > 1:
        ours = {spec: text.outline() for spec, text in texts.items() if text is not None}
        theirs = json.loads(hosts.share('outlines of the text', lambda: json.dumps(ours)))
        hosts.agree('the text', theirs | ours)
    return texts


def is_records(spec: str) -> bool:
    """Whether a source is Google's ready-made TFRecords."""
    return spec.startswith('tfrecord:') or spec.endswith(('.tfrecord', '.tfrecords'))
