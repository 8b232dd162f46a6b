"""The paper's grid for a task of GLUE (section 4.1: four rates, 3 epochs, a batch of 32), and 16
beside it, which appendix A.3 names. The rate and batch with the best score on the dev set win.

    python -m bert_jax.tools.sweep --config=configs/sweeps/glue.py:rte \\
        --config.init_checkpoint=DIR --config.data.source=glue
"""

CONFIG = '../glue.py'
GRID = (
    'train.batch_size=16,32',
    'optimizer.learning_rate=5e-5,4e-5,3e-5,2e-5',
)
