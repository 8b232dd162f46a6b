"""Text -> finished token stores and vocabularies. `preparing.prepare` is its door."""
