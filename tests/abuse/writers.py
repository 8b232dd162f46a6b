"""The commands that write, each on the things that `make_things` makes.

Not here: `predict` but for the two commands with --output (the others print, and keep compiled
programs, as 'answers' does), `tools.look` but for its temporary files (`--stores --remove`, which
only removes, neither), and what `--chips` and the launchers start, which are processes of these
same commands.
"""

import dataclasses
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax

from bert_jax.corpus import store_building, store_parts, text_batches
from bert_jax.runtime.chips import find_chip
from bert_jax.tools.preflight import measure, topology
from bert_jax.tools.preflight.links import Network
from tests.abuse.commands import make, open_command
from tests.conftest import xla_flags
from tests.tiny_runs import documents, paragraph, sentence


class Writer(NamedTuple):
    """A command that writes.

    Attributes:
      line: the command, as `tests.abuse.commands.arguments` takes it.
      once: a file or folder that it writes whole or not at all, and refuses to write again.
      is_guarded: whether it ends a run at a step: any signal that can be caught gives 143.
      is_cold: whether it starts without compiled programs.
      partners: other processes of the same command on the same folder, which are not killed.
      needs_tensorflow: whether it does not work without TensorFlow.
      before: is called in the process before the command.
      on_hub: whether it writes to the stand-in of the hub.
      times: how often it is killed while those that take longest are killed once.
    """

    line: str
    once: str = ''
    is_guarded: bool = False
    is_cold: bool = False
    partners: int = 0
    needs_tensorflow: bool = False
    before: Callable[[], None] = lambda: None
    on_hub: bool = False
    times: int = 5


def _in_small_parts() -> None:
    """Makes many parts of a small text."""
    text_batches._BATCH_DOCUMENTS = 5
    store_building._SHARE_BYTES = 4000
    store_building._PART_BYTES = 1000
    store_parts.BLOCK_TOKENS = 200


def _on_pretended_chips() -> None:
    """Compiles for two devices of this machine, which stand in for chips: no libtpu is needed."""
    os.environ['XLA_FLAGS'] = xla_flags(2)
    chip = dataclasses.replace(find_chip('TPU v5 lite'), num_devices=1)
    network = Network(((0,), (1,)), (2,), (False,), bandwidth=45e9, latency=0.0)
    topology.open_topology = lambda name: jax.devices()
    measure.find_chip = lambda kind: chip
    measure.open_network = lambda chip, devices: network


_PREPARE = (
    'prepare --config=configs/tiny_pretrain.py --config.data.vocab_size=300 '
    '--config.data.held_out=0.2 --config.data.dir={folder}/new ')
_PARTS = _PREPARE + '--config.data.local_dir={folder}/new --config.data.source={folder}/parts/*.txt'
_TUNED = (
    ' --config.init_checkpoint={folder}/run --config.train.batch_size=8 --config.train.steps=2'
    ' --config.train.eval_every=1 --config.train.save_every=1 --config.data.packing=False'
    ' --config.train.log_every=1 --config.data.dir={folder}/cache'
    ' --config.data.local_dir={folder}/cache --config.data.max_seq_length=32'
    ' --workdir={folder}/new')
_SWEEP = (
    'sweep --config=configs/glue.py:cola --grid optimizer.learning_rate=1e-2,1e-3,1e-4'
    ' --config.data.source={folder}/glue' + _TUNED)
_PAPER = [
    'data.dir={folder}/cache', 'train.batch_size=8', 'train.steps=4', 'train.eval_every=0',
    'train.save_every=2']
_PRETRAIN = [
    *_PAPER, 'data.source={folder}/text.txt', 'data.vocab_file={folder}/run/vocab.txt',
    'data.held_out=0.2', 'train.eval_batch_size=8', 'phases[0].max_seq_length=16',
    'phases[0].max_predictions_per_seq=3', 'phases[1].max_seq_length=16',
    'phases[1].max_predictions_per_seq=3', 'model.num_layers=1', 'model.hidden_size=16',
    'model.num_heads=2']
_FINETUNE = [
    *_PAPER, 'data.max_seq_length=16', 'data.packing=False', 'optimizer.learning_rate=1e-3']
_TABLE = ' '.join([
    'paper 3 --workdir={folder}/new --data={folder} --columns=cola --seeds=1',
    *[f'--pretrain={setting}' for setting in _PRETRAIN],
    *[f'--finetune={setting}' for setting in _FINETUNE]])

WRITERS = {
    'to Hugging Face': Writer('convert {folder}/run {folder}/new --to huggingface', 'new'),
    'with a card': Writer(
        'convert {folder}/run {folder}/new --to huggingface --card={folder}/card.md', 'new'),
    'to TF1': Writer(
        'convert {folder}/run {folder}/new --to tf1', 'new', needs_tensorflow=True,
        times=1),
    'to a run': Writer('convert {folder}/run {folder}/new --to bert_jax', 'new'),
    'to the hub': Writer('convert {folder}/run hf:ORG/new --to huggingface', on_hub=True),
    'training': Writer(
        'main @text --config.train.steps=6 --workdir={folder}/run', is_guarded=True, times=1),
    'new training': Writer(
        'main @text --config.data.dir={folder}/far --config.data.local_dir={folder}/near',
        is_guarded=True, is_cold=True,
        before=_in_small_parts, times=1),
    'fine-tuning': Writer(
        'main @glue --config.train.steps=4 --workdir={folder}/cola', is_guarded=True, times=1),
    'SQuAD': Writer(
        'main --config=configs/squad.py:v2 --config.data.source={folder}/squad'
        ' --config.squad.doc_stride=16' + _TUNED, is_guarded=True, times=1),
    'SWAG': Writer(
        'main --config=configs/swag.py --config.data.source={folder}/swag' + _TUNED,
        is_guarded=True, times=1),
    'CoNLL': Writer(
        'main --config=configs/conll.py --config.data.source={folder}/conll' + _TUNED,
        is_guarded=True, times=1),
    'features of CoNLL': Writer(
        'main --config=configs/conll.py:features --config.data.source={folder}/conll' + _TUNED,
        is_guarded=True, times=1),
    'sweep': Writer(_SWEEP, is_guarded=True, times=1),
    'sweep of two': Writer(_SWEEP, is_guarded=True, partners=1, times=1),
    'paper': Writer(_TABLE, is_guarded=True, times=1),
    'store': Writer(_PARTS, before=_in_small_parts),
    'store of two': Writer(_PARTS, before=_in_small_parts, partners=1),
    'BPE and store': Writer(
        _PREPARE + '--config.data.local_dir={folder}/near --config.data.tokenizer=bpe '
        '--config.data.source={folder}/text.txt', before=_in_small_parts),
    'look': Writer(
        'look --config=configs/tiny_pretrain.py --vocab_sizes=200,300 '
        '--config.data.source={folder}/text.txt'),
    'evaluation': Writer('evaluate {folder}/cola --workdir={folder}/new'),
    'evaluation in place of another': Writer('evaluate {folder}/cola --workdir={folder}/scored'),
    'ensemble': Writer('evaluate {folder}/cola {folder}/cola2 --workdir={folder}/scored'),
    'vectors': Writer(
        'predict features --model {folder}/run --input {folder}/text.txt --pool=mean '
        '--output {folder}/new.npz', 'new.npz'),
    'hidden states': Writer(
        'predict features --model {folder}/run --input {folder}/text.txt '
        '--output {folder}/new.npz', 'new.npz'),
    'export': Writer(
        'predict export --model {folder}/run --output {folder}/new.stablehlo', 'new.stablehlo'),
    'answers': Writer(
        'predict classify --model {folder}/hf_unpacked lon fin dal', is_cold=True),
    'page': Writer('report {folder}/run {folder}/cola --output={folder}/new.html', 'new.html'),
    'board': Writer('report {folder}/run {folder}/cola --board --output={folder}/new.md', 'new.md'),
    'reference': Writer(
        'report {folder}/run {folder}/run2 --reference --output={folder}/new.json', 'new.json'),
    'bench': Writer(
        'bench --model=tiny --vocab_size=200 --batch_size=1 --seq=8 --predictions=1 --steps=1 '
        '--warmup=0 --repeats=1 --json={folder}/new.json'),
    'hard negatives': Writer(
        'mine --model {folder}/run --input {folder}/pairs.csv --text=query --text-pair=document '
        '--margin=-2 --output {folder}/new.jsonl', 'new.jsonl'),
    'submission': Writer('glue_submission {folder}/new.zip --fill-missing', 'new.zip'),
    'preflight': Writer(
        'preflight @synthetic --topology=v5e:1x2 --json={folder}/new.json'
        ' --save_programs={folder}/new', before=_on_pretended_chips, times=2),
}


def make_things(folder: Path) -> None:
    """Makes what `commands.make` makes, and what the other commands read."""
    make(folder)
    _write_squad(folder / 'squad')
    _write_swag(folder / 'swag')
    _write_conll(folder / 'conll')
    _write_pairs(folder / 'pairs.csv')
    (folder / 'card.md').write_text('---\nlicense: mit\n---\n\n## Intended use\n\nTests.\n')
    (folder / 'parts').mkdir()
    text = documents(60, sentences=5).split('\n\n')
    for number in range(6):
        part = '\n\n'.join(text[10 * number:10 * number + 10])
        (folder / 'parts' / f'{number}.txt').write_text(part)
    shutil.copytree(folder / 'cola', folder / 'cola2')
    _copy_with_another_seed(folder / 'run', folder / 'run2')
    for line in (
        'evaluate {folder}/cola --config.data.eval_source={folder}/glue/CoLA/train.tsv '
        '--workdir={folder}/scored',
        'convert {folder}/cola {folder}/hf_unpacked --to huggingface',
    ):
        answer = open_command(line, folder)
        assert answer.status == 0, answer.err
    # Its vocabulary is then unpacked into the cache.
    (folder / 'hf_unpacked' / 'vocab.txt').unlink()


def _copy_with_another_seed(run: Path, copy: Path) -> None:
    """Copies a run so that it seems to have had the seed 1."""
    shutil.copytree(run, copy)
    config = json.loads((copy / 'config.json').read_text())
    config['seed'] = 1
    del config['digest']
    (copy / 'config.json').write_text(json.dumps(config))


def _write_pairs(path: Path) -> None:
    """Writes queries and documents, 12 of each."""
    rng = random.Random(5)
    rows = [f'{sentence(rng)},{sentence(rng)} {number}' for number in range(12)]
    path.write_text('\n'.join(['query,document', *rows]) + '\n')


def _write_squad(folder: Path) -> None:
    """Writes SQuAD 2.0 with three paragraphs of two questions, of which one has no answer."""
    folder.mkdir()
    rng = random.Random(2)
    paragraphs = []
    for number in range(3):
        context = paragraph(rng, 6)
        word = context.split()[3]
        answer = {'text': word, 'answer_start': context.index(word)}
        paragraphs.append({'context': context, 'qas': [
            {'id': f'{number}a', 'question': sentence(rng), 'answers': [answer],
             'is_impossible': False},
            {'id': f'{number}b', 'question': sentence(rng), 'answers': [],
             'is_impossible': True}]})
    content = json.dumps({'version': 'v2.0', 'data': [{'title': 'a', 'paragraphs': paragraphs}]})
    for split in ('train', 'dev'):
        (folder / f'{split}-v2.0.json').write_text(content)


def _write_swag(folder: Path) -> None:
    """Writes SWAG's training and validation file with 12 questions each."""
    folder.mkdir()
    rng = random.Random(3)
    lines = [',video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,'
             'ending3,label']
    for number in range(12):
        first, second = sentence(rng), sentence(rng)
        endings = ','.join(sentence(rng) for _ in range(4))
        lines.append(f'{number},v,1,{first} {second},{first},{second},gold,{endings},{number % 4}')
    for split in ('train', 'val'):
        (folder / f'{split}.csv').write_text('\n'.join(lines) + '\n')


def _write_conll(folder: Path) -> None:
    """Writes the three files of CoNLL-2003 with 12 sentences each."""
    folder.mkdir()
    rng = random.Random(4)
    blocks = ['-DOCSTART- -X- O O']
    for _ in range(12):
        words = sentence(rng).split()
        tags = ['B-PER', 'I-PER', *['O'] * len(words)]
        blocks.append('\n'.join(
            f'{word} NN B-NP {tag}' for word, tag in zip(words, tags, strict=False)))
    for name in ('eng.train', 'eng.testa', 'eng.testb'):
        (folder / name).write_text('\n\n'.join(blocks) + '\n')
