"""Names among which fields of the config choose, and which the code below the config knows."""

# Units of masking: pieces, words (google-research/bert's whole-word masking), or runs of words.
MASKINGS = ('pieces', 'words', 'ngrams', 'spans')

# How the learning rate falls (`step.schedules` has the formulas).
DECAYS = ('polynomial', 'cosine', '1-sqrt', 'inverse_sqrt')

# Kinds of adapters (`config.adapters` says what they are).
ADAPTERS = ('lora', 'rslora', 'dora', 'bitfit')

# What happens to a text that is too long for the model: 'first' cuts it, as in the paper; the
# others read it in windows and take the mean (weighted by tokens) or the maximum of their
# probabilities.
WINDOWS = ('first', 'mean', 'max')

# How a pair that is too long is cut. google: as google-research/bert does, a token at a time from
# the end of the longer text, or of the second if they are equal. The others are transformers':
# longest_first leaves both about half of the room if both have more; only_first and only_second
# cut one of the two.
GOOGLE = 'google'
LONGEST_FIRST = 'longest_first'
TRUNCATIONS = (GOOGLE, LONGEST_FIRST, 'only_first', 'only_second')

# Which types the tokens of a pair have. segments: 1 from the second text on, 0 before it, as in
# BERT; template: those that the tokenizer's template states; zeros: 0 everywhere.
SEGMENTS = 'segments'
TEMPLATE = 'template'
ZEROS = 'zeros'
TOKEN_TYPES = (SEGMENTS, TEMPLATE, ZEROS)

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
# Thresholds of `data.near_duplicates`.
MOST_SIMILAR = 0.95  # thresholds above it would take signatures of thousands of bins
LEAST_SIMILAR = 0.5  # below it, most pairs with an equal key are not similar
