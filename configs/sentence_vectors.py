"""Vectors of sentences: `retrieval.py` for short texts, with vectors that can be cut.

    python -m bert_jax.main --config=configs/sentence_vectors.py --config.init_checkpoint=DIR \\
        --config.data.source=pairs.csv --config.data.text=question --config.data.text_pair=answer \\
        --config.data.choices=wrong_answer --workdir=runs/vectors
    python -m bert_jax.main --config=configs/sentence_vectors.py:stsb --config.data.source=glue \\
        --config.init_checkpoint=DIR --workdir=runs/vectors
    python -m bert_jax.predict features --model runs/vectors --pool=mean --normalize "A man eats."
    python -m bert_jax.convert runs/vectors vectors_hf --to huggingface

The metric is how often a text is nearest to its partner among those held out. `:stsb` trains on
the pairs of STS-B with a score of 4 or more, after SimCSE (Gao et al., 2021), and its metric is
Spearman's correlation of the cosines with the scores. The first half and the first quarter of a
vector are trained to work alone as well (Matryoshka: Kusupati et al., 2022): cut vectors, and scale
them anew. `python -m bert_jax.evaluate DIR --config=...` scores any encoder as it is.
"""

from bert_jax.config.command_line import config_file, load_config


def get_config(data: str = 'own'):
    c = load_config(config_file(f'retrieval.py:{data}'))
    c.retrieval.dims = '0.5,0.25'
    c.data.max_seq_length = 64
    if data == 'stsb':
        c.retrieval.least_score = 4.0
    else:
        c.retrieval.metrics = 'accuracy_at_1,ndcg_at_10'
    return c
