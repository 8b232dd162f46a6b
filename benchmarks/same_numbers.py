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
from pathlib import Path

TINY = (
    '--config=configs/tiny_pretrain.py', '--config.model.hidden_size=32',
    '--config.model.num_heads=2', '--config.data.vocab_size=300', '--config.data.max_seq_length=32',
    '--config.data.max_predictions_per_seq=5', '--config.data.held_out=0.2',
    '--config.train.batch_size=16', '--config.train.eval_batch_size=16',
    '--config.train.log_every=1', '--config.train.eval_every=6', '--config.train.steps=12',
)
TUNE = (
    '--config.data.max_seq_length=48', '--config.train.batch_size=8', '--config.train.log_every=1',
    '--config.train.steps=8', '--config.train.eval_every=4',
    '--config.optimizer.learning_rate=1e-3',
)
# Parts of the names of values that do not follow from the seed.
TIMES = (
    'seconds', 'per_second', 'mfu', 'goodput', 'time', 'eta', 'wait', 'ms', 'badput',
)
WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']


def write_inputs(work: Path) -> None:
    """Writes texts and labelled tables, all drawn with seed 0."""
    rng = random.Random(0)

    def sentence(least: int = 4, most: int = 12) -> str:
        return ' '.join(rng.choices(WORDS, k=rng.randint(least, most))).capitalize() + '.'

    for name in ('text', 'other'):
        (work / f'{name}.txt').write_text('\n\n'.join(
            ' '.join(sentence() for _ in range(rng.randint(3, 12))) for _ in range(60)))
    rows = [(sentence(), sentence()) for _ in range(80)]
    labels = ['yes' if 'a' in a.split()[0] else 'no' for a, _ in rows]
    (work / 'pairs.csv').write_text('text,other,label\n' + ''.join(
        f'{a},{b},{label}\n' for (a, b), label in zip(rows, labels)))
    (work / 'scores.csv').write_text('text,other,label\n' + ''.join(
        f'{a},{b},{len(a) / 10}\n' for a, b in rows))
    (work / 'several.csv').write_text('text,label\n' + ''.join(
        f'{a},{label};{"long" if len(a) > 40 else "short"}\n'
        for (a, _), label in zip(rows, labels)))
    (work / 'tags.txt').write_text('\n'.join(
        '\n'.join(f'{word} {"B-X" if word[0] in "Bb" else "O"}' for word in a.split()) + '\n'
        for a, _ in rows))
    (work / 'choices.csv').write_text('text,one,two,label\n' + ''.join(
        f'{a},{b},{sentence()},{rng.randint(0, 1)}\n' for a, b in rows))
    paragraphs = []
    for number in range(40):
        context = ' '.join(sentence() for _ in range(6))
        answer = context.split()[number % 7 + 3]
        paragraphs.append({'context': context, 'qas': [{
            'id': f'q{number}', 'question': f'Where is {answer.lower()}?', 'is_impossible': False,
            'answers': [{'text': answer, 'answer_start': context.index(answer)}],
        }, {'id': f'n{number}', 'question': f'Who is {sentence(2, 3)}', 'is_impossible': True,
            'answers': []}]})
    (work / 'squad.json').write_text(json.dumps(
        {'version': 'v2.0', 'data': [{'title': 't', 'paragraphs': paragraphs}]}))
    (work / 'short.txt').write_text('\n\n'.join(
        f'{sentence(2, 5)} {sentence(2, 5)}' for _ in range(400)))


def runs(work: Path, data: Path | None) -> dict[str, tuple[str, ...]]:
    """Arguments of every run by name; `{base}` stands for the folder of a checkout's runs."""
    text = (*TINY, f'--config.data.source={work}/text.txt', '--config.data.dir={base}/cache')
    lm = {
        'plain': (), 'remat': ('--config.model.remat=full',),
        'packed': ('--config.train.packed_rows=12', '--config.data.max_seq_length=128',
                   f'--config.data.source={work}/short.txt'),
        'ltr': ('--config.model.causal=True', '--config.data.next_sentence=False'),
        'words': ('--config.data.masking=words',), 'ngrams': ('--config.data.masking=ngrams',),
        'spans': ('--config.data.masking=spans',),
        'ten': ('--config.data.num_maskings=10',),
        'parts': ('--config.train.accumulation_steps=2',),
        'adamw': ('--config.optimizer.name=adamw',), 'lamb': ('--config.optimizer.name=lamb',),
        'muon': ('--config.optimizer.name=muon',),
        'phases': ("--config.phases=({'steps': 6, 'max_seq_length': 16, "
                   "'max_predictions_per_seq': 3}, {'steps': 6})",),
        'sources': (f"--config.data.source=[('{work}/text.txt', 1), ('{work}/other.txt', 2)]",),
        'bfloat16': ('--config.model.dtype=bfloat16',),
    }
    result = {name: (*text, *extra) for name, extra in lm.items()}
    result['random'] = (*TINY, '--config.task=synthetic')
    result['resumed'] = text  # resumed from its checkpoint at step 6
    start = ('--config.init_checkpoint={base}/plain', '--config.data.dir={base}/cache')
    pair = ('--config.data.text=text', '--config.data.text_pair=other')
    own = {
        'classes': ('classification', 'pairs.csv', pair),
        'unpacked': ('classification', 'pairs.csv', (*pair, '--config.data.packing=False')),
        'scores': ('regression', 'scores.csv', pair),
        'several': ('classification', 'several.csv', ('--config.classification.multi_label=True',)),
        'tags': ('tagging', 'tags.txt', ()),
        'choices': ('multiple_choice', 'choices.csv', ('--config.data.choices=one,two',)),
        'squad2': ('squad.py:v2', 'squad.json', (f'--config.data.eval_source={work}/squad.json',)),
    }
    for name, (config, file, extra) in own.items():
        config = config if '.py' in config else f'{config}.py'
        result[name] = (f'--config=configs/{config}', *start, *TUNE,
                        f'--config.data.source={work}/{file}', *extra)
    result['again'] = (*text, '--config.init_checkpoint={base}/plain', '--config.seed=3')
    if data is not None:
        few = (*TUNE, '--config.train.steps=4', '--config.train.eval_every=0')
        for task in ('mrpc', 'stsb', 'rte'):
            result[task] = (f'--config=configs/glue.py:{task}', *start, *few,
                            f'--config.data.source={data}/glue')
        for kind in ('', ':features'):
            result['conll' + kind.replace(':', '_')] = (
                f'--config=configs/conll.py{kind}', *start, *few,
                f'--config.data.source={data}/conll2003', '--config.data.max_seq_length=64')
    return result


def train(checkout: Path, base: Path, name: str, arguments: tuple[str, ...]) -> None:
    """Makes a run, unless it is done; its log is beside it."""
    workdir = base / name
    if (base / f'{name}.done').exists():
        return
    command = [sys.executable, '-m', 'bert_jax.main', f'--workdir={workdir}',
               *(argument.replace('{base}', str(base)) for argument in arguments)]
    environment = os.environ | {
        'PYTHONPATH': str(checkout), 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
    attempts = [command]
    if name == 'resumed':  # run twice; its last checkpoint is moved away in between
        attempts = [[*command, '--config.train.save_every=6']] * 2
    with open(base / f'{name}.log', 'w', encoding='utf-8') as log:
        for number, attempt in enumerate(attempts):
            process = subprocess.run(
                attempt, cwd=checkout, env=environment, stdout=log, stderr=subprocess.STDOUT)
            if process.returncode:
                print(f'{name}: exit status {process.returncode} in {checkout}: {base}/{name}.log')
                return
            if name == 'resumed' and number == 0:
                for newest in (workdir / 'checkpoints').glob('12*'):
                    newest.rename(base / 'moved_aside')
    (base / f'{name}.done').touch()


def numbers(workdir: Path) -> dict[str, str]:
    """What a run gave, by name: numbers as they are written, digests of arrays and files."""
    found: dict[str, str] = {}
    for line in (workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines():
        record = json.loads(line)
        for key, value in record.items():
            if not any(word in key for word in TIMES):
                found[f'{record.get("step")} {key}'] = repr(value)
    import orbax.checkpoint as ocp

    manager = ocp.CheckpointManager((workdir / 'checkpoints').absolute())
    step = manager.latest_step()
    tree = manager.restore(step, args=ocp.args.StandardRestore())
    manager.close()
    import jax
    import numpy as np

    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        digest = hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest()[:12]
        found[f'checkpoint {step} {jax.tree_util.keystr(path)}'] = digest
    for pattern in ('*predictions*', '*.txt'):
        for file in workdir.glob(pattern):
            found[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkouts', nargs=2, type=Path, metavar='CHECKOUT')
    parser.add_argument('--work', type=Path, required=True, help='keeps runs; one folder each')
    parser.add_argument('--data', type=Path, help='folder with glue/ and conll2003/')
    parser.add_argument('--only', default='', help='names of runs between commas')
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / 'text.txt').exists():
        write_inputs(options.work)
    wanted = runs(options.work.absolute(), options.data and options.data.absolute())
    if options.only:
        needed = {*options.only.split(','), 'plain'}
        wanted = {name: arguments for name, arguments in wanted.items() if name in needed}
    status = 0
    for name, arguments in wanted.items():
        results = []
        for number, checkout in enumerate(options.checkouts):
            base = options.work.absolute() / ('old', 'new')[number]
            base.mkdir(exist_ok=True)
            train(checkout.absolute(), base, name, arguments)
            done = (base / f'{name}.done').exists()
            results.append(numbers(base / name) if done else None)
        if None in results:
            print(f'{name:12} FAILED', flush=True)
            status = 1
            continue
        old, new = results
        differ = [key for key in old if old[key] != new.get(key)]
        added = sorted({key.split()[-1] for key in new} - {key.split()[-1] for key in old})
        print(f'{name:12} {"DIFFERS" if differ else "same"}  {len(old)} numbers'
              + ''.join(f', {key} is new' for key in added)
              + ''.join(f'\n  {key}: {old.get(key)} -> {new.get(key)}' for key in differ[:6]),
              flush=True)
        status |= bool(differ)
    return status


if __name__ == '__main__':
    sys.exit(main())
