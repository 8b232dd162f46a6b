"""Proof for a refactoring: seeded tiny runs of two checkouts give the same numbers, bit for bit.

    python benchmarks/same_numbers.py ../old . --work=/tmp/same [--data=DATA] [--only=packed,sst2]

Every run is made by `python -m bert_jax.main` in each checkout, one after another, on one CPU
device. It compares all numbers in metrics.jsonl except times, the newest checkpoint, the vocabulary
and the predictions. Numbers depend on the machine, so none are stored: both checkouts run on the
same one. Runs that are finished in --work are not repeated.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def fields(*settings: str) -> tuple[str, ...]:
    """Command-line arguments that set FIELD=VALUE."""
    return tuple(f'--config.{setting}' for setting in settings)


TINY = (
    '--config=configs/tiny_pretrain.py',
    *fields(
        'model.hidden_size=32', 'model.num_heads=2', 'data.vocab_size=300',
        'data.max_seq_length=32', 'data.max_predictions_per_seq=5', 'data.held_out=0.2',
        'train.batch_size=16', 'train.eval_batch_size=16', 'train.log_every=1',
        'train.eval_every=6', 'train.steps=12'),
)
TUNE = fields(
    'data.max_seq_length=48', 'train.batch_size=8', 'train.log_every=1', 'train.steps=8',
    'train.eval_every=4', 'optimizer.learning_rate=1e-3')
# `{base}` stands for the folder of a checkout's runs.
CACHE = fields('data.dir={base}/cache')
FROM_PLAIN = fields('init_checkpoint={base}/plain')
# Parts of the names of values that do not follow from the seed.
TIMES = (
    'seconds', 'per_second', 'mfu', 'goodput', 'time', 'eta', 'wait', 'ms', 'badput',
)
WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']

Runs = dict[str, tuple[str, ...]]  # arguments of bert_jax.main by name of the run


class Texts:
    """Draws sentences with seed 0."""

    def __init__(self) -> None:
        self.rng = random.Random(0)

    def sentence(self, least: int = 4, most: int = 12) -> str:
        """A sentence of `least` to `most` words."""
        num_words = self.rng.randint(least, most)
        return ' '.join(self.rng.choices(WORDS, k=num_words)).capitalize() + '.'

    def document(self, num_sentences: int) -> str:
        """A document of sentences of any length."""
        return ' '.join(self.sentence() for _ in range(num_sentences))

    def question(self, number: int) -> dict[str, Any]:
        """A paragraph of SQuAD 2.0 with a question that it answers and one that it does not."""
        context = self.document(6)
        answer = context.split()[number % 7 + 3]
        answered = {
            'id': f'q{number}', 'question': f'Where is {answer.lower()}?', 'is_impossible': False,
            'answers': [{'text': answer, 'answer_start': context.index(answer)}],
        }
        unanswered = {
            'id': f'n{number}', 'question': f'Who is {self.sentence(2, 3)}', 'is_impossible': True,
            'answers': [],
        }
        return {'context': context, 'qas': [answered, unanswered]}


def write_inputs(work: Path) -> None:
    """Writes texts and labelled tables. Their content depends on the order of the draws."""
    texts = Texts()
    for name in ('text', 'other'):
        documents = [texts.document(texts.rng.randint(3, 12)) for _ in range(60)]
        (work / f'{name}.txt').write_text('\n\n'.join(documents))
    pairs = [(texts.sentence(), texts.sentence()) for _ in range(80)]
    write_labelled_pairs(work, pairs)
    (work / 'tags.txt').write_text('\n'.join(tagged(first) for first, _ in pairs))
    choices = []
    for first, second in pairs:
        choices.append((first, second, texts.sentence(), texts.rng.randint(0, 1)))
    write_csv(work / 'choices.csv', 'text,one,two,label', choices)
    paragraphs = [texts.question(number) for number in range(40)]
    (work / 'squad.json').write_text(json.dumps(
        {'version': 'v2.0', 'data': [{'title': 't', 'paragraphs': paragraphs}]}))
    short = [f'{texts.sentence(2, 5)} {texts.sentence(2, 5)}' for _ in range(400)]
    (work / 'short.txt').write_text('\n\n'.join(short))


def write_labelled_pairs(work: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Writes the tables of a classification, a regression and one with several labels."""
    labelled = []
    scored = []
    several = []
    for first, second in pairs:
        label = 'yes' if 'a' in first.split()[0] else 'no'
        labelled.append((first, second, label))
        scored.append((first, second, len(first) / 10))
        several.append((first, f'{label};{length_label(first)}'))
    write_csv(work / 'pairs.csv', 'text,other,label', labelled)
    write_csv(work / 'scores.csv', 'text,other,label', scored)
    write_csv(work / 'several.csv', 'text,label', several)


def write_csv(path: Path, heading: str, rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table whose cells need no quotes."""
    lines = [heading]
    for row in rows:
        lines.append(','.join(map(str, row)))
    path.write_text('\n'.join(lines) + '\n')


def length_label(sentence: str) -> str:
    """A label to predict: whether a sentence is long."""
    return 'long' if len(sentence) > 40 else 'short'


def tagged(sentence: str) -> str:
    """A sentence as lines of words with tags: words that begin with a b are entities."""
    lines = []
    for word in sentence.split():
        tag = 'B-X' if word[0] in 'Bb' else 'O'
        lines.append(f'{word} {tag}')
    return '\n'.join(lines) + '\n'


def all_runs(work: Path, data: Path | None) -> Runs:
    """The runs to compare, in an order in which those that others start from come first."""
    result = pretraining_runs(work) | fine_tuning_runs(work)
    result['again'] = (*result['resumed'], *FROM_PLAIN, *fields('seed=3'))
    if data is not None:
        result |= runs_on_real_data(data)
    return result


def pretraining_runs(work: Path) -> Runs:
    """Pre-training with one change each."""
    changes = {
        'plain': (),
        'remat': fields('model.remat=full'),
        'packed': fields(
            'train.packed_rows=12', 'data.max_seq_length=128', f'data.source={work}/short.txt'),
        'ltr': fields('model.causal=True', 'data.next_sentence=False'),
        'words': fields('data.masking=words'),
        'ngrams': fields('data.masking=ngrams'),
        'spans': fields('data.masking=spans'),
        'ten': fields('data.num_maskings=10'),
        'parts': fields('train.accumulation_steps=2'),
        'adamw': fields('optimizer.name=adamw'),
        'lamb': fields('optimizer.name=lamb'),
        'muon': fields('optimizer.name=muon'),
        'phases': fields(
            "phases=({'steps': 6, 'max_seq_length': 16, 'max_predictions_per_seq': 3}, "
            "{'steps': 6})"),
        'sources': fields(
            f"data.source=[('{work}/text.txt', 1), ('{work}/other.txt', 2)]"),
        'bfloat16': fields('model.dtype=bfloat16'),
    }
    text = (*TINY, *fields(f'data.source={work}/text.txt'), *CACHE)
    result = {name: (*text, *change) for name, change in changes.items()}
    result['random'] = (*TINY, *fields('task=synthetic'))
    result['resumed'] = text  # resumed from its checkpoint at step 6
    return result


def fine_tuning_runs(work: Path) -> Runs:
    """Runs on labelled tables, from the weights of `plain`."""
    pair = fields('data.text=text', 'data.text_pair=other')

    def tune(config: str, file: str, *extra: str) -> tuple[str, ...]:
        return (
            f'--config=configs/{config}', *FROM_PLAIN, *CACHE, *TUNE,
            *fields(f'data.source={work}/{file}'), *extra)

    return {
        'classes': tune('classification.py', 'pairs.csv', *pair),
        'unpacked': tune('classification.py', 'pairs.csv', *pair, *fields('data.packing=False')),
        'scores': tune('regression.py', 'scores.csv', *pair),
        'several': tune(
            'classification.py', 'several.csv', *fields('classification.multi_label=True')),
        'tags': tune('tagging.py', 'tags.txt'),
        'choices': tune('multiple_choice.py', 'choices.csv', *fields('data.choices=one,two')),
        'squad2': tune(
            'squad.py:v2', 'squad.json', *fields(f'data.eval_source={work}/squad.json')),
    }


def runs_on_real_data(data: Path) -> Runs:
    """A few steps on tasks of the paper, from the weights of `plain`."""
    few = (*FROM_PLAIN, *CACHE, *TUNE, *fields('train.steps=4', 'train.eval_every=0'))
    conll = (*few, *fields(f'data.source={data}/conll2003', 'data.max_seq_length=64'))
    result = {}
    for task in ('mrpc', 'stsb', 'rte'):
        result[task] = (
            f'--config=configs/glue.py:{task}', *few, *fields(f'data.source={data}/glue'))
    result['conll'] = ('--config=configs/conll.py', *conll)
    result['conll_features'] = ('--config=configs/conll.py:features', *conll)
    return result


class Checkout:
    """A checkout and the folder of its runs."""

    def __init__(self, path: Path, base: Path):
        self.path = path.absolute()
        self.base = base
        base.mkdir(exist_ok=True)

    def numbers(self, name: str, arguments: Sequence[str]) -> dict[str, str] | None:
        """What a run gives, by name, made now unless it has been; None: it fails."""
        done = self.base / f'{name}.done'
        if not done.exists():
            if not self._train(name, arguments):
                return None
            done.touch()
        return numbers_of(self.base / name)

    def _train(self, name: str, arguments: Sequence[str]) -> bool:
        """Makes a run, with its log beside it; whether it ends well."""
        arguments = [argument.replace('{base}', str(self.base)) for argument in arguments]
        log = self.base / f'{name}.log'
        log.unlink(missing_ok=True)
        if name == 'resumed':
            arguments = [*arguments, *fields('train.save_every=6')]
            if not self._run(name, arguments, log):
                return False
            for newest in (self.base / name / 'checkpoints').glob('12*'):
                newest.rename(self.base / 'moved_aside')
        return self._run(name, arguments, log)

    def _run(self, name: str, arguments: Sequence[str], log: Path) -> bool:
        command = [
            sys.executable, '-m', 'bert_jax.main', f'--workdir={self.base / name}', *arguments]
        environment = os.environ | {
            'PYTHONPATH': str(self.path), 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
        with open(log, 'a', encoding='utf-8') as output:
            process = subprocess.run(
                command, cwd=self.path, env=environment, stdout=output, stderr=subprocess.STDOUT)
        if process.returncode:
            print(f'{name}: exit status {process.returncode} in {self.path}: {log}')
        return process.returncode == 0


def numbers_of(workdir: Path) -> dict[str, str]:
    """What a run gave, by name: numbers as they are written, digests of arrays and files."""
    return logged_numbers(workdir) | checkpoint_digests(workdir) | file_digests(workdir)


def logged_numbers(workdir: Path) -> dict[str, str]:
    """The numbers of metrics.jsonl but for times."""
    found = {}
    for line in (workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if not any(word in key for word in TIMES):
                found[f'{record.get("step")} {key}'] = repr(value)
    return found


def checkpoint_digests(workdir: Path) -> dict[str, str]:
    """The arrays of the newest checkpoint."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    manager = ocp.CheckpointManager((workdir / 'checkpoints').absolute())
    step = manager.latest_step()
    tree = manager.restore(step, args=ocp.args.StandardRestore())
    manager.close()
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found[f'checkpoint {step} {jax.tree_util.keystr(path)}'] = digest(
            np.asarray(leaf).tobytes())
    return found


def file_digests(workdir: Path) -> dict[str, str]:
    """Predictions and vocabulary."""
    files = [*workdir.glob('*predictions*'), *workdir.glob('*.txt')]
    return {file.name: digest(file.read_bytes()) for file in files}


def digest(content: bytes) -> str:
    """A short hash of content."""
    return hashlib.sha256(content).hexdigest()[:12]


def compare(name: str, old: dict[str, str], new: dict[str, str]) -> bool:
    """Prints how the numbers of a run differ; whether all old ones are the same."""
    differing = [key for key in old if old[key] != new.get(key)]
    added = {key.split()[-1] for key in new} - {key.split()[-1] for key in old}
    line = f'{name:12} {"DIFFERS" if differing else "same"}  {len(old)} numbers'
    for key in sorted(added):
        line += f', {key} is new'
    print(line, flush=True)
    for key in differing[:6]:
        print(f'  {key}: {old.get(key)} -> {new.get(key)}', flush=True)
    return not differing


def main() -> int:
    """Runs the command (see the top of this file); the exit status is 0 if all is the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkouts', nargs=2, type=Path, metavar='CHECKOUT')
    parser.add_argument('--work', type=Path, required=True, help='keeps runs; one folder each')
    parser.add_argument('--data', type=Path, help='folder with glue/ and conll2003/')
    parser.add_argument('--only', default='', help='names of runs between commas')
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if not (work / 'text.txt').exists():
        write_inputs(work)
    runs = all_runs(work, options.data.absolute() if options.data else None)
    if options.only:
        wanted = {*options.only.split(','), 'plain'}
        runs = {name: arguments for name, arguments in runs.items() if name in wanted}
    old = Checkout(options.checkouts[0], work / 'old')
    new = Checkout(options.checkouts[1], work / 'new')
    all_same = True
    for name, arguments in runs.items():
        old_numbers = old.numbers(name, arguments)
        new_numbers = new.numbers(name, arguments)
        if old_numbers is None or new_numbers is None:
            print(f'{name:12} FAILED', flush=True)
            all_same = False
        elif not compare(name, old_numbers, new_numbers):
            all_same = False
    return 0 if all_same else 1


if __name__ == '__main__':
    sys.exit(main())
