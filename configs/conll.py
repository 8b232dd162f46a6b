"""CoNLL-2003 named entities (paper section 5.3): fine-tuned, or from features of a frozen encoder.

    python -m bert_jax.main --config=configs/conll.py
    python -m bert_jax.main --config=configs/conll.py --config.init_checkpoint=DIR \\
        --config.data.source=conll2003
    python -m bert_jax.main --config=configs/conll.py:documents --config.data.source=conll2003 ...
    python -m bert_jax.main --config=configs/conll.py:features --config.conll.features=last ...

The first downloads BERT-Base, cased, and the data from the Hugging Face hub, which has only
sentences, without their documents, as has `tfds:conll2003`. `conll2003` is the folder with
eng.train, eng.testa and, for test scores (`test_f1`), eng.testb. Start from a cased model.
`:documents` fills the window with neighbouring sentences ("maximal document context"), as the
paper's 92.4 on the test set (Base) needs. `:features` is table 7: two BiLSTM layers of 768 on the
concatenated last four layers, or another of its six choices. The paper gives no learning rates;
these are from its grid (Appendix A.3), and Adam's usual 1e-3 for the BiLSTM.
"""

from bert_jax.config import CASED, finetuning_config


def get_config(context: str = 'sentences'):
    if context not in ('sentences', 'documents', 'features'):
        raise ValueError(
            f'configs/conll.py:{context} is unknown: choose sentences, documents or features'
        )
    c = finetuning_config('conll', CASED)
    c.train.steps = '4 epochs'
    if context == 'sentences':
        c.data.source = 'hf:datasets/eriktks/conll2003@refs/convert/parquet'
        c.data.max_seq_length = 128
        c.train.batch_size = 32
    else:
        c.data.source = 'conll2003'
        c.data.max_seq_length = 512
        c.conll.document_context = True
        c.train.batch_size = 8
    if context == 'features':
        c.conll.features = 'concat_last_four'
        c.optimizer.learning_rate = 1e-3
    return c
