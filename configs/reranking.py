"""Scores of documents for a query, to rank anew what a search has found (a cross-encoder).

    python -m bert_jax.tools.mine --model runs/search --input pairs.csv --text question \\
        --text-pair answer --negatives 7 --output mined.jsonl
    python -m bert_jax.main --config=configs/reranking.py --config.init_checkpoint=DIR \\
        --config.data.source=mined.jsonl --config.data.text=question \\
        --config.data.text_pair=answer \\
        --config.data.choices=negative_1,negative_2,negative_3 --workdir=runs/reranker
    python -m bert_jax.predict rerank --model runs/reranker "How do I cook rice?" "Boil it." "No."

A table has a query, its document and hard negatives in each row; or a query, a document and its
gain (data.label: 0 is not relevant, more is better). The documents of a query are compared in
groups (reranking.group_size), by reranking.loss. The queries that are held out are scored by the
ranking of their documents, or those of another search are (reranking.candidates, corpus, queries
and qrels); the best step is that with the highest nDCG.

`:tiny` starts from runs/quickstart and, as that does, takes Muon and no dropout, on the table that
docs/retrieval.md mines for it. It shows the commands, and no gain: its negatives are so easy that
the search orders them perfectly, and of the search's candidates it ranks far worse than the search.
A gain takes pretrained weights of some size. Pairs are cut as sentence-transformers cuts them.
"""

from bert_jax.config import finetuning_config


def get_config(data: str = 'own'):
    if data not in ('own', 'tiny'):
        raise ValueError(f'configs/reranking.py:{data} is unknown: leave it out, or tiny')
    c = finetuning_config('reranking')
    c.data.source = 'mined.jsonl'
    c.data.truncation = 'longest_first'
    c.train.batch_size = 16  # queries, each with its group of documents
    c.optimizer.learning_rate = 2e-5
    if data == 'tiny':
        c.init_checkpoint = 'runs/quickstart'
        c.data.choices = 'negative_1,negative_2,negative_3'
        c.data.max_seq_length = 64
        c.model.hidden_dropout = c.model.attention_dropout = 0.0
        c.optimizer.name = 'muon'
        c.optimizer.learning_rate = 2e-3
    return c
