"""The grid of the paper's appendix A.3 for CoNLL-2003: batch, rate and epochs, best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/conll.py \\
        --config.init_checkpoint=DIR --config.data.source=conll2003

Of `:features` the rate is another: give it with --grid.
"""

CONFIG = '../conll.py'
GRID = (
    'train.steps=2 epochs,3 epochs,4 epochs',
    'train.batch_size=16,32',
    'optimizer.learning_rate=5e-5,3e-5,2e-5',
)
