"""Places that cannot be written, or hold what is not ours: reported before the work."""

import contextlib
import errno
import os
import subprocess
from unittest import mock

import pytest

from tests.abuse.commands import Case

_READ_ONLY = '/proc/1'  # where nothing can be made, even by root


@contextlib.contextmanager
def full_disk(folder):
    """Nothing more fits on any disk."""
    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch('os.fsync', refuse):
        yield


@contextlib.contextmanager
def small_disk(folder):
    """`small` is a disk of 16 kB."""
    (folder / 'small').mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=16k', 'none', folder / 'small'], capture_output=True)
    if mounted.returncode:
        pytest.skip('disks cannot be mounted here')
    try:
        yield
    finally:
        subprocess.run(['umount', '--lazy', folder / 'small'], check=True)


CASES = [
    Case('a workdir that cannot be made', 'main', f'@synthetic --workdir={_READ_ONLY}/run',
         r'--workdir=/proc/1/run'),
    Case('data.dir is a file', 'main', '@text --config.data.dir={folder}/notes/important.txt',
         r'config\.data\.dir'),
    Case('data.dir cannot be made', 'main',
         f'@text --config.data.dir={_READ_ONLY}/cache',
         r'config\.data\.dir'),
    Case('data.dir is full', 'main', '@text --config.data.dir={folder}/other',
         r'other.*--config\.data\.dir', around=full_disk),
    *(Case(f'a full disk, {form}', 'convert', f'{{folder}}/run {{folder}}/small/x --to {form}',
           r'small/x is full', 1, around=small_disk)
      for form in ('huggingface', 'tf1', 'bert_jax')),
    Case('a full disk', 'main', '@text --workdir={folder}/small/x', r'small/x is full', 1,
         around=small_disk),
    Case('a full disk for data', 'main',
         '@text --config.data.dir={folder}/small/x --config.data.local_dir={folder}/small/x',
         r'small/x.*config\.data\.dir', around=small_disk),
    Case('a full disk', 'predict',
         '@features --input {folder}/text.txt --output {folder}/small/x.npz',
         r'small/x\.npz is full', 1, around=small_disk),
    Case('a full disk for an export', 'predict', '@export --output {folder}/small/x',
         r'small/x.*[Nn]o space', around=small_disk),
    Case('to a place that cannot be', 'convert', f'{{folder}}/run {_READ_ONLY}/new --to tf1',
         r'/proc/1/new'),
    Case('below a file', 'convert', '{folder}/run {folder}/text.txt/new --to huggingface',
         r'text\.txt'),
    Case('features to a folder', 'predict', '@features --output {folder}/notes a', r'notes'),
    Case('features to a folder of that name', 'predict', '@features --output {folder}/v.npz a',
         r'v\.npz', before=lambda folder: (folder / 'v.npz').mkdir()),
    Case('features to no folder', 'predict', '@features --output {folder}/none/v.npz a', r'none'),
    Case('features to a place that cannot be', 'predict',
         f'@features --output {_READ_ONLY}/v.npz a', r'/proc/1'),
    Case('features to a full disk', 'predict', '@features --output {folder}/v.npz a', r'full|space',
         1, around=full_disk),
    Case('export to a folder', 'predict', '@export --output {folder}/notes', r'notes'),
    Case('export to no folder', 'predict', '@export --output {folder}/none/v', r'none'),
    Case('export to a place that cannot be', 'predict', f'@export --output {_READ_ONLY}/v',
         r'/proc/1'),
    Case('export onto its parameters', 'predict', '@export --output {folder}/v.npz', r'v\.npz'),
    Case('a report that is there', 'report', '{folder}/run --output {folder}/notes/important.txt',
         r'important\.txt is there already'),
    Case('a report that cannot be written', 'report', f'{{folder}}/run --output {_READ_ONLY}/x',
         r'--output=/proc/1/x'),
    Case('an ensemble that cannot be written', 'evaluate',
         f'{{folder}}/cola --workdir={_READ_ONLY}/e', r'--workdir=/proc/1/e'),
    Case('an ensemble of no run', 'evaluate', '{folder}/cola {folder}/notes', r'notes'),
    Case('a sweep that is a file', 'sweep', '@sweep --workdir={folder}/text.txt',
         r'--workdir=.*text\.txt'),
    Case('a sweep that cannot be written', 'sweep', f'@sweep --workdir={_READ_ONLY}/s',
         r'--workdir=/proc/1/s'),
    Case('JSON to a folder', 'bench', '--only=step --json={folder}/notes', r'--json=.*notes'),
    Case('JSON to no folder', 'bench', '--only=step --json={folder}/none/x.json', r'--json=.*none'),
    Case('JSON to a place that cannot be', 'bench', f'--only=step --json={_READ_ONLY}/x.json',
         r'--json=/proc/1/x\.json'),
    Case('JSON over a file', 'preflight',
         '@synthetic --topology=v5e:2x2 --json={folder}/notes/important.txt',
         r'important\.txt is there already'),
    Case('a zip in no folder', 'submission', '{folder}/none/z.zip --fill-missing', r'none'),
    Case('a zip that is a folder', 'submission', '{folder}/notes --fill-missing', r'notes'),
    # Files that are not ours: nothing that somebody else wrote is written over.
    Case('a Hugging Face folder as run directory', 'main',
         '@synthetic --workdir={folder}/hf_pretraining', r'hf_pretraining.*--workdir'),
    Case('the published weights as run directory', 'main',
         '@glue --config.init_checkpoint={folder}/hf_pretraining --workdir={folder}/hf_pretraining',
         r'hf_pretraining.*--workdir'),
    Case('a folder of notes as run directory', 'main', '@synthetic --workdir={folder}/notes',
         r'notes.*important\.txt.*--workdir'),
    Case('a file as run directory', 'main', '@synthetic --workdir={folder}/text.txt',
         r'--workdir=.*text\.txt'),
    Case('below a file', 'main', '@synthetic --workdir={folder}/text.txt/run',
         r'--workdir=.*text\.txt'),
    Case('checkpoints is a file', 'main', '@synthetic', r'new/checkpoints.*--workdir',
         before=lambda folder: ((folder / 'new').mkdir(),
                                (folder / 'new' / 'checkpoints').write_text('x'))),
    Case('a run whose config.json is gone', 'main', '@text --workdir={folder}/run',
         r'run.*config\.json.*--workdir',
         before=lambda folder: (folder / 'run' / 'config.json').unlink()),
    Case('a Hugging Face folder for the ensemble', 'evaluate',
         '{folder}/cola {folder}/cola --workdir={folder}/hf_classification',
         r'hf_classification.*--workdir'),
    Case('a run for the ensemble', 'evaluate', '{folder}/cola --workdir={folder}/run', r'is a run'),
    Case('notes for the ensemble', 'evaluate', '{folder}/cola --workdir={folder}/notes',
         r'notes.*--workdir'),
    Case('a file for the ensemble', 'evaluate', '{folder}/cola --workdir={folder}/text.txt',
         r'--workdir=.*text\.txt'),
    Case('notes for a report', 'report', '{folder}/notes --output {folder}/new.html',
         r'notes is no run directory'),
    Case('export over the weights', 'predict',
         '@export --output {folder}/hf_pretraining/model.safetensors',
         r'model\.safetensors.*is there already'),
    Case('export beside an .npz', 'predict', '@export --output {folder}/v.stablehlo',
         r'v\.npz.*is there already',
         before=lambda folder: (folder / 'v.npz').write_bytes(b'features')),
    Case('features over a file', 'predict', '@features --output {folder}/v.npz "a b"',
         r'v\.npz.*is there already',
         before=lambda folder: (folder / 'v.npz').write_bytes(b'features')),
    Case('convert onto a run', 'convert', '{folder}/run {folder}/cola --to huggingface',
         r'cola is there already'),
    Case('convert onto itself', 'convert', '{folder}/run {folder}/run --to tf1', r'there already'),
    Case('a sweep in a run', 'sweep', '@sweep --workdir={folder}/run', r'run.*--workdir'),
    Case('a sweep in a Hugging Face folder', 'sweep', '@sweep --workdir={folder}/hf_pretraining',
         r'hf_pretraining.*--workdir'),
    Case('a submission over weights', 'submission',
         '{folder}/hf_pretraining/model.safetensors --fill-missing', r'is there already'),
    Case('a benchmark over weights', 'bench',
         '--only=step --json={folder}/hf_pretraining/config.json', r'is there already'),
]
