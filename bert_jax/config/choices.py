"""Names among which fields of the config choose, and which the code below the config knows."""

# Units of masking: pieces, words (google-research/bert's whole-word masking), or runs of words.
MASKINGS = ('pieces', 'words', 'ngrams', 'spans')

# How the learning rate falls (`train.optimizers` has the formulas).
DECAYS = ('polynomial', 'cosine', '1-sqrt', 'inverse_sqrt')

# What happens to a text that is too long for the model: 'first' cuts it, as in the paper; the
# others read it in windows and take the mean (weighted by tokens) or the maximum of their
# probabilities.
WINDOWS = ('first', 'mean', 'max')

# How the vectors of the tokens of a text become one.
POOLS = ('mean', 'cls', 'max')

# Features of a frozen encoder, the paper's Table 7 (`heads.tokens.FeatureCombination`).
FEATURES = (
    'embeddings',
    'second_to_last',
    'last',
    'weighted_sum_last_four',
    'concat_last_four',
    'weighted_sum_all',
)
