"""BoolQ (Clark et al., 2019) of SuperGLUE: does a passage answer a question with yes?

    python -m bert_jax.main --config=configs/boolq.py
    python -m bert_jax.main --config=configs/boolq.py --config.init_checkpoint=DIR \\
        --config.data.source=BoolQ/train.jsonl --config.data.eval_source=BoolQ/val.jsonl

The first downloads the paper's BERT-Base, uncased, and the data from the Hugging Face hub.
`python -m bert_jax.predict classify --model RUN --input BoolQ/test.jsonl --text question
--text-pair passage` predicts the test set.
"""

from bert_jax.config import finetuning_config


def get_config():
    c = finetuning_config('classification')
    c.data.source = 'hf:datasets/aps/super_glue/boolq/train'
    c.data.eval_source = 'hf:datasets/aps/super_glue/boolq/validation'
    c.data.text = 'question'
    c.data.text_pair = 'passage'
    c.data.max_seq_length = 256
    c.optimizer.learning_rate = 2e-5
    return c
