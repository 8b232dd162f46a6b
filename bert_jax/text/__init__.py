"""Text to ids: tokenizers, one file a kind (`text.kinds` lists them), and their vocabularies."""
