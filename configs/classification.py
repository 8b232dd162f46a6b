"""Your own texts with labels: single or in pairs, one label each or several.

    python -m bert_jax.main --config=configs/classification.py --config.init_checkpoint=DIR \\
        --config.data.source=train.csv --config.data.eval_source=dev.csv

CSV, TSV, JSON lines or Parquet, as spreadsheets and Hugging Face `datasets` write them; the
columns are named by data.text, data.text_pair (empty: single texts) and data.label. Labels are
learnt from the training file. Without an evaluation file a tenth is held out (data.held_out), and
without DIR training starts from the published BERT-Base, uncased.
`--config.classification.multi_label=True`: any number of labels per example, as a list or with a
character between them, such as `,` or `|`, which is found.
`--config.classification.metrics=macro_f1,accuracy`: one or more of accuracy, f1 (of the second of
two labels), macro_f1, micro_f1 and matthews; the first picks the best evaluation.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('classification')
    c.data.source = 'train.csv'
    return c
