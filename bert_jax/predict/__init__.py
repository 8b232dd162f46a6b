"""Uses a model: in Python by `bert_jax.load`, else by `python -m bert_jax.predict`.

    import bert_jax
    model = bert_jax.load('runs/tiny_pretrain')
    for answer in model.fill_mask(['The list is [MASK] in place.']):
        print(answer['predictions'][0]['token'])
"""

from typing import Any

from bert_jax.runtime.errors import InputError as InputError


def __getattr__(name: str) -> Any:
    """`load`, which programs of older versions import from here."""
    if name != 'load':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    import bert_jax

    return bert_jax.load
