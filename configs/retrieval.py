"""Vectors of texts for search: a query moves towards its document, away from all others.

    python -m bert_jax.main --config=configs/retrieval.py --config.init_checkpoint=DIR \\
        --config.data.source=pairs.csv --config.data.text=question --config.data.text_pair=answer \\
        --config.data.choices=wrong_answer --workdir=runs/search
    python -m bert_jax.predict features --model runs/search --prompt=query "How do I cook rice?"
    python -m bert_jax.tools.mine --help                   # hard negatives by the run's own vectors
    python -m bert_jax.convert runs/search search_hf --to huggingface

A table has a query and its document in each row, and perhaps hard negatives: texts that look like
the document and are none, in one column or several (data.choices). A query is to find its document
among all documents and hard negatives of the global batch. A held-out tenth is scored by ranking
its documents, or another corpus is (retrieval.corpus, queries and qrels); the best step is that
with the highest nDCG. With `--config.data.label=score`, rows are two texts and how alike they are;
with `:stsb` they are those of STS-B, from data.source=glue, the folder of GLUE.

`:tiny` starts from runs/quickstart, with short texts, a high rate and eight epochs: a minute on
two cores for the thousand pairs of docs/retrieval.md.

`--config.train.accumulation_steps=32 --config.train.batch_size=4096` computes the step in 32 parts,
with the loss and the gradient of the whole batch.
"""

from bert_jax.config import finetuning_config


def get_config(data: str = 'own'):
    if data not in ('own', 'stsb', 'tiny'):
        raise ValueError(f'configs/retrieval.py:{data} is unknown: leave it out, or stsb or tiny')
    c = finetuning_config('retrieval_stsb' if data == 'stsb' else 'retrieval')
    c.data.source = 'hf:datasets/nyu-mll/glue' if data == 'stsb' else 'pairs.csv'
    c.data.max_seq_length = 128 if data == 'own' else 64
    c.train.batch_size = 64
    if data == 'tiny':
        c.init_checkpoint = 'runs/quickstart'
        c.train.steps = '8 epochs'
        c.train.eval_every = '2 epochs'
        c.optimizer.learning_rate = 1e-3
    return c
