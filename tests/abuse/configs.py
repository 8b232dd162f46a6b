"""Config files that are none, and settings that mean nothing."""

from tests.abuse.commands import Case


def _file(name: str, content: str | bytes, says: str) -> Case:
    def write(folder):
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)

    return Case(f'{name} of {content[:30]!r}', 'main', '--config={folder}/' + name,
                rf'(config\.|{name}.*){says}', before=write)


_START = 'from bert_jax.config import default_config\ndef get_config():\n    c = default_config()\n'

CASES = [
    Case('no config', 'main', '--workdir={folder}/new', r'--config is missing'),
    Case('no such config', 'main', '--config=configs/tiny_pretrian.py',
         r'tiny_pretrian\.py.*no such'),
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
    _file('c.py', _START + '    c.phases = ("a",)\n    return c\n', r'phases\[0\]'),
    _file('c.py', _START + '    del c.optimizer.eps\n    return c\n', r'line 4'),
    _file('c.py', _START + '    c.optimizer.learning_rte = 1\n    return c\n', 'learning_rte'),
    _file('c.py', _START + '    c.train = 3\n    return c\n', 'train'),
    _file('c.py', 'import sys\nsys.exit(0)\n', r'line 2'),
    _file('c.py', 'def get_config():\n    return get_config()\n', 'recursion'),
    Case('an argument that it does not take', 'main', '--config=configs/tiny_pretrain.py:foo',
         r"tiny_pretrain\.py.*'foo'"),
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
]
