"""Numbers that cannot be: one table says what each field may be."""

import re

from tests.abuse.commands import Case

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
    '("a",)': r'phases\[0\]', '({"steps": -1},)': r'phases\[0\]\.steps', '(1,)': r'phases\[0\]',
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
