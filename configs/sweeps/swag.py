"""The grid of the paper's appendix A.3 for SWAG: batch, rate and epochs, best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/swag.py \\
        --config.init_checkpoint=DIR --config.data.source=swag

Section 4.4 trains with 16, 2e-5 and 3 epochs.
"""

CONFIG = '../swag.py'
GRID = (
    'train.steps=2 epochs,3 epochs,4 epochs',
    'train.batch_size=16,32',
    'optimizer.learning_rate=5e-5,3e-5,2e-5',
)
