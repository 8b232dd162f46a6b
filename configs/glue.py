"""Fine-tuning on a task of GLUE, as in the paper (section 4.1): batch 32, 3 epochs.

    python -m bert_jax.main --config=configs/glue.py:mrpc
    python -m bert_jax.main --config=configs/glue.py:mrpc --config.init_checkpoint=DIR \\
        --config.data.source=glue

`:cola :sst2 :mrpc :stsb :qqp :mnli :qnli :rte :wnli`. A run of `:mnli` also predicts the diagnostic
set if the folder has `diagnostic/` (ax_predictions.tsv). To predict sets that were added after a
run finished, start it again.

The first downloads the paper's BERT-Base, uncased, and the data from the Hugging Face hub. DIR is a
Hugging Face folder, a TF1 checkpoint or a run of this project. `glue` is the folder of the
benchmark's files; `tfds:glue` works too. The paper takes the best of the learning rates 5e-5, 4e-5,
3e-5 and 2e-5 on the dev set.
"""

from bert_jax.config import finetuning_config


def get_config(task: str = 'mrpc'):
    if task == 'ax':
        raise ValueError(
            'configs/glue.py:ax has no training set: configs/glue.py:mnli predicts it, where the '
            'folder of the benchmark has diagnostic/'
        )
    c = finetuning_config(task)
    c.data.source = 'hf:datasets/nyu-mll/glue'
    return c
