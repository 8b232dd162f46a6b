"""The grid of the paper's appendix A.3 for SQuAD: batch, rate and epochs, best on the dev set.

    python -m bert_jax.tools.sweep --config=configs/sweeps/squad.py:v1 \\
        --config.init_checkpoint=DIR --config.data.source=squad

Section 4.2 trains with 32, 5e-5 and 3 epochs, section 4.3 (`:v2`) with 48, 5e-5 and 2.
"""

CONFIG = '../squad.py'
GRID = (
    'train.steps=2 epochs,3 epochs,4 epochs',
    'train.batch_size=16,32',
    'optimizer.learning_rate=5e-5,3e-5,2e-5',
)
