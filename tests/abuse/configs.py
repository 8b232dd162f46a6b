"""Config files that are none, settings that mean nothing, numbers that cannot be."""

import re

from tests.abuse.commands import Case


def _file(name: str, content: str | bytes, says: str) -> Case:
    def write(folder):
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)

    return Case(f'{name} of {content[:30]!r}', 'main', '--config={folder}/' + name,
                rf'(config\.|{name}.*){says}', before=write)


_START = 'from bert_jax.config import default_config\ndef get_config():\n    c = default_config()\n'

_REFUSED = {
    # field: values, each refused by its name
    'optimizer.weight_decay': ('nan', 'inf', '-1'),
    'optimizer.clip_norm': ('nan', 'inf', '-1'),
    'optimizer.name': ('lino', 'lbfgs', 'scale_by_adam', 'apply_updates', ''),
    'optimizer.arguments': ('b1=0.5', '0.5', 'b1', '**{}', 'b1=open("x")'),
    'optimizer.layer_decay': ('nan', '0', '1.5'),
    'optimizer.eps': ('nan', 'inf', '-1e-6', '1e9'),
    'optimizer.learning_rate': ('nan', 'inf', '-1', '0', '1e400'),
    'optimizer.decay_power': ('-1', 'nan', 'inf'),
    'optimizer.b1': ('1', '-0.1', 'nan'),
    'optimizer.b2': ('1.5', 'nan'),
    'optimizer.warmup': ('-1', 'nan', '1e400', 'soon'),
    'model.initializer_range': ('-1', '0', 'nan', 'inf'),
    'model.layer_norm_eps': ('-1', '0', 'nan', '7'),
    'model.hidden_dropout': ('1', '7.5', 'nan', '-0.1'), 'model.classifier_dropout': ('1',),
    'model.attention_dropout': ('nan', '-0.1'),
    'model.hidden_size': ('0', '-8', '100000000'),
    'model.num_layers': ('0', '1000000'),
    'model.vocab_size': ('-1', '10000000000'),
    'model.max_position_embeddings': ('0', '1000000000'),
    'data.held_out': ('1', '-0.1', 'nan', '1.5'),
    'data.masked_lm_prob': ('nan', '2', '-1'),
    'data.mask_rate': ('nan', '1.1'),
    'data.max_malformed': ('nan', '-1', '2'),
    'data.max_seq_length': ('200000', '-1', '0', '7'),
    'data.max_predictions_per_seq': ('0', '-1', '1000000'),
    'data.vocab_size': ('-5', '10', '1000000000000'),
    'data.min_sentences': ('0', '-1'),
    'data.num_maskings': ('-1',),
    'train.steps': ('-1', '1e400 steps', '1e15 steps', '1e8 epochs', 'nan', 'many', '0.5'),
    'train.batch_size': ('0', '-8', '100000000'),
    'train.packed_rows': ('-1', '3', '1000000'),
    'train.accumulation_steps': ('0', '-1', '100000000'),
    'train.eval_batch_size': ('0', '-1', '1000000'),
    'train.max_eval_examples': ('-1',),
    'train.eval_every': ('-1', 'nan', '1e400 steps', '3 feet'),
    'train.save_every': ('-1', 'inf', 'often'),
    'train.log_every': ('-1', 'always'),
    'train.keep_checkpoints': ('0', '-1'),
    'train.profile': ('1..1000', 'x', '-1..2', '9..8', '0..8'), 'train.skip_steps': ('(0,)',),
    'mesh.data': ('0', '-2', '3'), 'mesh.fsdp': ('0', '-2', '3'), 'mesh.tensor': ('0', '7'),
    'seed': ('-1', '2147483648', '99999999999999999999'),
}
_PHASES = {
    '("a",)': 'phases', '({"steps": -1},)': r'phases\[0\]\.steps', '(1,)': 'phases',
    '({"steps": 2, "learning_rate": -1.0},)': r'phases\[0\]\.learning_rate',
    '({"steps": 2, "learning_rate": 1e400},)': r'phases\[0\]\.learning_rate',
    '({"steps": 2, "learning_rate": "fast"},)': r'phases\[0\]\.learning_rate',
    '({"steps": "1e400 steps"},)': r'phases\[0\]\.steps',
    '({"steps": 2, "batch_size": 1e400},)': 'phases',
    '({"steps": 2, "batch_size": 100000000},)': r'phases\[0\]\.batch_size',
    '({"steps": 2, "max_seq_length": 200000},)': r'phases\[0\]\.max_seq_length',
    '({"stepz": 2},)': 'did you mean',
    '({"steps": None},)': r'phases\[0\]\.steps', '({"steps": [2]},)': r'phases\[0\]\.steps',
    '"steps"': 'phases', 'None': 'phases', '{"steps": 3}': 'phases',
}

CASES = [
    Case('no config', 'main', '--workdir={folder}/new', r'--config is missing'),
    Case('no such config', 'main', '--config=configs/tiny_pretrian.py',
         r'tiny_pretrian\.py: No such'),
    Case('a folder', 'main', '--config=configs', r'configs.*directory'),
    Case('a binary', 'main', '--config={folder}/hf_pretraining/model.safetensors',
         r'model\.safetensors.*Python'),
    Case('JSON', 'main', '--config={folder}/hf_pretraining/config.json',
         r'config\.json.*(get_config|Python)'),
    _file('c.py', '', 'get_config'),
    _file('c.py', b'\xff\xfe\x00', 'Python'),
    _file('c.py', 'def get_config(:\n', 'line 1'),
    _file('c.py', 'import nothing_of_this_name\n', r'line 1.*nothing_of_this_name'),
    _file('c.py', '\n\nx = 1 / 0\n', r'line 3.*division'),
    _file('c.py', 'def get_config():\n    return 1 / 0\n', r'line 2.*division'),
    _file('c.py', 'def config():\n    pass\n', 'get_config'),
    _file('c.py', 'get_config = 3\n', 'get_config'),
    _file('c.py', 'def get_config():\n    return {}\n', 'default_config'),
    _file('c.py', 'def get_config():\n    pass\n', 'default_config'),
    _file('c.py', 'from ml_collections import ConfigDict\ndef get_config():\n'
          '    return ConfigDict({"task": "pretrain"})\n', 'default_config'),
    _file('c.py', _START + '    c.phases = ("a",)\n    return c\n', 'phases'),
    _file('c.py', _START + '    del c.optimizer.eps\n    return c\n', r'line 4'),
    _file('c.py', _START + '    c.optimizer.learning_rte = 1\n    return c\n', 'learning_rte'),
    _file('c.py', _START + '    c.train = 3\n    return c\n', 'train'),
    _file('c.py', 'import sys\nsys.exit(0)\n', r'line 2'),
    _file('c.py', 'def get_config():\n    return get_config()\n', 'recursion'),
    Case('an argument that it does not take', 'main', '--config=configs/tiny_pretrain.py:foo',
         r'tiny_pretrain\.py:foo: .*takes 0'),
    Case('an argument that it does not know', 'main', '--config=configs/glue.py:nope', r"'nope'"),
    Case('a set that is not trained on', 'main', '--config=configs/glue.py:ax',
         r'^error: configs/glue\.py:ax has no training set'),
    Case('a wrong type', 'main', '@synthetic --config.train.batch_size=many',
         r'train\.batch_size.*many'),
    Case('a number for a word', 'main', '@synthetic --config.task=3', r'task'),
    Case('a word for a switch', 'main', '@synthetic --config.data.packing=perhaps', r'packing'),
    Case('an unknown field', 'main', '@synthetic --config.optimizer.lr=1',
         r'optimizer\.lr is not a field'),
    Case('a whole section', 'main', '@synthetic --config.train=3', r'train'),
    Case('an unknown flag', 'main', '@synthetic --wrkdir={folder}/new', r'wrkdir'),
    Case('a word too many', 'main', '@synthetic --workdir={folder}/new please', r"'please'"),
    Case('an unknown task', 'main', '@synthetic --config.task=pretran', r"did you mean 'pretrain'"),
    Case('a dtype', 'main', '@synthetic --config.model.dtype=int8', r'model\.dtype'),
    Case('features in pre-training', 'main', '@synthetic --config.model.features=last',
         r'model\.features'),
    Case('a column of pre-training', 'main', '@synthetic --config.data.text_pair=b',
         r'data\.text_pair'),
    Case('masking of a downstream task', 'main', '@glue --config.data.masked_lm_prob=0.3',
         r'data\.masked_lm_prob'),
    *(Case(f'{field} of a benchmark', 'main', f'@glue --config.{field}={value}',
           rf'{field}.*means nothing')
      for field, value in (
          ('train.eval_batch_size', 8), ('train.max_eval_examples', 3), ('data.vocab_size', 99),
          ('data.label', 'y'), ('data.held_out', 0.5))),
    Case('no model', 'main', '--config=configs/glue.py:rte', r'init_checkpoint'),
    Case('phases of a benchmark', 'main', ('@glue', '--config.phases=({"steps": 1},)'), 'phases'),
    Case('no config', 'preflight', '--topology=v5e:2x2', r'--config is missing'),
    Case('a slice that is none', 'preflight', '@synthetic --topology=3', r'topology'),
    Case('no config', 'sweep', '--config=nowhere.py --restarts=1', r'nowhere\.py'),
    Case('no config', 'prepare', '--config=nowhere.py', r'nowhere\.py'),
    Case('a folder', 'prepare', '--config=configs', r'configs.*directory'),
    Case('a grid of one field twice', 'sweep', '--config=configs/glue.py:cola --grid seed=1,1',
         r'twice'),
    Case('a grid of an impossible value', 'sweep',
         '--config=configs/glue.py:cola --grid train.batch_size=many', r'batch_size'),
    Case('a table of an impossible value', 'paper', '5 --pretrain train.batch_size=many',
         r'batch_size'),
    Case('left-to-right with the next sentence', 'main', '@synthetic --config.model.causal=True',
         r'data\.next_sentence'),
    Case('a BiLSTM in pre-training', 'main', '@synthetic --config.model.bilstm=True',
         r'model\.bilstm.*means nothing'),
] + [
    Case(f'{field}={value}', 'main', ('@synthetic', f'--config.{field}={value}'),
         rf"{field.rpartition('.')[2]}.*{re.escape(value.split()[0])}"
         if value and value not in ('1e400', 'inf', 'nan', '1e9', '1e-6', '-1e-6') else field)
    for field, values in _REFUSED.items() for value in values
] + [
    Case(f'phases={value}', 'main', ('@synthetic', f'--config.phases={value}'), says)
    for value, says in _PHASES.items()
] + [
    Case(f'squad.{field}={value}', 'main',
         ('--config=configs/squad.py', '--config.init_checkpoint={folder}/run',
          f'--config.squad.{field}={value}'), field)
    for field, value in (
        ('max_query_length', -1), ('max_query_length', 0), ('doc_stride', 0), ('doc_stride', -5))
] + [
    *(Case(f'sweep {flag}', 'sweep', f'@sweep --{flag}=-1', f'--{flag}=-1')
      for flag in ('restarts', 'parallel', 'chips')),
    Case('sweep of NaN', 'sweep', '@sweep --grid optimizer.learning_rate=nan,1e-4', '_rate=nan'),
    Case('null threshold', 'predict',
         'answer --model {folder}/hf_question_answering --null-threshold=nan "who ?" "a b"',
         r'null.threshold=nan'),
    Case('answer length', 'predict',
         'answer --model {folder}/hf_question_answering --max-answer-length=-1 "who ?" "a b"',
         r'--max-answer-length|max_answer_length'),
    Case('top k', 'predict', 'fill-mask --model {folder}/hf_pretraining --top-k=-1 "a [MASK]"',
         r'--top-k|top_k'),
    Case('layers', 'predict', '@features --layers=-99 "a"', r'layer -99'),
    Case('steps', 'bench', '--only=step --steps=-1', r'steps'),
    Case('steps of nothing', 'bench', '--only=step --seq=1e99', r'seq'),
]
