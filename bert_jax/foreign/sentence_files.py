"""The files beside a model's weights by which sentence-transformers makes vectors with them."""

from typing import Any

from bert_jax.config.bert_config import BertConfig
from bert_jax.config.choices import POOLS
from bert_jax.runtime.files import Path
from bert_jax.runtime.new_folder import write_json
from bert_jax.weights.parameters import Weights


def write_sentence_files(folder: Path, weights: Weights) -> None:
    """Writes the modules that pool, and scale vectors to length 1, and the prompts, as of the run.

    `predict.sentences` reads them.

    Args:
      folder: of the model; its encoder's files are in it.
      weights: their `inference` has `pool`, one of POOLS, and perhaps `normalize` and `prompts`.
    """
    modules = ['Transformer', 'Pooling']
    if weights.inference.get('normalize'):
        modules.append('Normalize')
    listed: list[dict[str, Any]] = []
    for i, name in enumerate(modules):
        path = f'{i}_{name}' if i else ''
        (folder / path).mkdir(exist_ok=True)
        listed.append({
            'idx': i, 'name': str(i), 'path': path,
            'type': f'sentence_transformers.models.{name}'})
    write_json(folder / 'modules.json', listed)
    model = BertConfig(**weights.model)
    pooling: dict[str, Any] = {'word_embedding_dimension': model.hidden_size}
    for mode in POOLS:
        suffix = '_token' if mode == 'cls' else '_tokens'
        pooling[f'pooling_mode_{mode}{suffix}'] = mode == weights.inference['pool']
    if weights.inference.get('include_prompt') is False:
        pooling['include_prompt'] = False
    write_json(folder / '1_Pooling' / 'config.json', pooling)
    max_length = weights.inference.get('max_seq_length') or model.max_length
    cut = {}
    if weights.inference.get('truncate_dim'):
        cut['truncate_dim'] = weights.inference['truncate_dim']
    write_json(folder / 'sentence_bert_config.json', {
        'max_seq_length': min(max_length, model.max_length),
        'do_lower_case': weights.inference.get('do_lower_case', False)})
    write_json(folder / 'config_sentence_transformers.json', {
        'prompts': weights.inference.get('prompts') or {},
        'default_prompt_name': weights.inference.get('default_prompt'),
        'similarity_fn_name': weights.inference.get('similarity', 'cosine')} | cut)
