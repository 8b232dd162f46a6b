"""The model card of a Hugging Face folder: what is known of a model, for people."""

from __future__ import annotations

from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads import HEADS
from bert_jax.weights.description import Weights


def model_card(weights: Weights, architecture: str) -> str:
    """Markdown, with the front matter that model hubs read.

    Args:
      weights: of the model.
      architecture: Hugging Face's class that they are written for.
    """
    rows = {'parameters': f'{sum(x.size for x in weights.params.values()):,}'}
    rows |= {option.name: str(weights.model[option.name]) for option in OPTIONS}
    if weights.labels:
        rows['labels'] = ', '.join(weights.labels).replace('|', r'\|')
    if weights.vocab_file is not None:
        kind = 'SentencePiece' if weights.vocab_file.suffix == '.model' else 'WordPiece'
        rows['vocabulary'] = f"{kind}, {'lower-cased' if weights.lowercase else 'cased'} text"
    rows |= {name: str(value) for name, value in weights.inference.items()}
    table = '\n'.join(f'| {name} | {value} |' for name, value in rows.items())
    return f"""\
---
library_name: transformers
tags:
- bert
---

# BERT with {HEADS[weights.head].title}

Written by bert_jax from: {weights.source}.

| | |
|---|---|
{table}

```python
from transformers import AutoTokenizer, {architecture}

tokenizer = AutoTokenizer.from_pretrained('FOLDER')
model = {architecture}.from_pretrained('FOLDER')
```

or, with bert_jax, `bert_jax.predict.load('FOLDER')`.

What it was trained on, how it scores, what it is good for and under which license it may be used
are not known here: say so before others use it.
"""
