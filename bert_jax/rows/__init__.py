"""From a finished token store, or a table, to batches: pairs, masks, packing, mixtures."""
