"""The files with which sentence-transformers makes vectors of texts with a model."""

from typing import Any

from bert_jax.config.bert_config import BertConfig
from bert_jax.config.choices import POOLS
from bert_jax.runtime.files import Path
from bert_jax.runtime.new_folder import write_json
from bert_jax.weights.parameters import Weights


def write_sentence_files(folder: Path, weights: Weights) -> None:
    """Writes modules.json with pooling and normalization, and the prompts, as the run had them.

    `predict.sentences` reads these files.

    Args:
      folder: of the model; the encoder's own files are in it.
      weights: the model; `Weights.inference` has `pool`, one of POOLS, and the other settings for
        vectors that the run had.
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
    dims_kept = {}
    if weights.inference.get('truncate_dim'):
        dims_kept['truncate_dim'] = weights.inference['truncate_dim']
    write_json(folder / 'sentence_bert_config.json', {
        'max_seq_length': min(max_length, model.max_length),
        'do_lower_case': weights.inference.get('do_lower_case', False)})
    write_json(folder / 'config_sentence_transformers.json', {
        'prompts': weights.inference.get('prompts') or {},
        'default_prompt_name': weights.inference.get('default_prompt'),
        'similarity_fn_name': weights.inference.get('similarity', 'cosine')} | dims_kept)
