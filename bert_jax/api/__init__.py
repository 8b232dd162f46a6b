"""BERT in one's own program; `import bert_jax` gives these names."""

from bert_jax.api.pretrained import Bert as Bert
from bert_jax.api.pretrained import from_config as from_config
from bert_jax.api.pretrained import from_pretrained as from_pretrained
from bert_jax.api.runs import evaluate_run as evaluate_run
from bert_jax.api.runs import train_run as train_run
from bert_jax.config.bert_config import BertConfig as BertConfig
from bert_jax.predict import load as load
from bert_jax.runtime.errors import InputError as InputError
