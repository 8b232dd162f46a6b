"""Against transformers itself: random models there and back, fine-tuning, tokenizers."""

import dataclasses
import random
import unittest

import numpy as np
import pytest

from bert_jax.foreign import load_weights
from bert_jax.foreign.families.bert import BERT
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.text.kinds import load_tokenizer
from bert_jax.weights.parameters import from_params, sizes_of, tensors
from tests.foreign.run_model import INPUTS, RECORDED, assert_same, outputs, real

pytestmark = [pytest.mark.slow, pytest.mark.extras]

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
tokenizers = pytest.importorskip('tokenizers', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')

CLASSES = (
    'BertModel', 'BertForPreTraining', 'BertForMaskedLM', 'BertForNextSentencePrediction',
    'BertForSequenceClassification', 'BertForSequenceClassification', 'BertForMultipleChoice',
    'BertForTokenClassification', 'BertForQuestionAnswering', 'BertForPreTraining')


def random_model(seed):
    """A model of the seed's class, with random sizes and parameters."""
    kind, rng = CLASSES[seed], random.Random(seed)
    torch.manual_seed(seed)
    heads = rng.randint(1, 4)
    config = transformers.BertConfig(
        vocab_size=rng.randint(40, 300), num_hidden_layers=rng.randint(1, 4),
        num_attention_heads=heads, hidden_size=heads * rng.randint(3, 9),
        intermediate_size=rng.randint(5, 50), max_position_embeddings=rng.randint(12, 40),
        type_vocab_size=rng.randint(1, 3), layer_norm_eps=rng.choice([1e-12, 1e-7, 1e-5]),
        hidden_act=rng.choice(['gelu', 'gelu_new', 'gelu_pytorch_tanh']),
        hidden_dropout_prob=rng.choice([0.0, 0.1]), classifier_dropout=rng.choice([None, 0.25]))
    if seed == 5:
        config.num_labels = 1  # regression
    elif kind in ('BertForSequenceClassification', 'BertForTokenClassification'):
        num_labels = rng.randint(2, 7)
        names = [f'name {i}' for i in range(num_labels)]
        rng.shuffle(names)
        config.id2label = dict(enumerate(names))
        config.label2id = {name: i for i, name in enumerate(names)}
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(0.0, 0.3)
            if name.endswith('LayerNorm.weight'):
                x.add_(1.0)
    return model


def random_inputs(config, kind, seed):
    rng = np.random.default_rng(seed)
    shape = (2, 3, 11) if kind == 'BertForMultipleChoice' else (3, 11)
    mask = np.ones(shape, np.int64)
    mask[..., -1, 8:] = 0
    return {'input_ids': rng.integers(0, config.vocab_size, shape), 'attention_mask': mask,
            'token_type_ids': rng.integers(0, config.type_vocab_size, shape)}


def theirs(model, inputs):
    with torch.no_grad():
        found = model(**{name: torch.tensor(inputs[name]) for name in INPUTS})
    if isinstance(model, transformers.BertForNextSentencePrediction):
        return {'seq_relationship_logits': found.logits.numpy()}  # as the model with both heads
    return {name: x.numpy() for name, x in dict(found).items()}


def ours(weights, inputs):
    # A model with the next-sentence head alone gets a masked-LM head of zeros.
    rest = {tensor.name: np.zeros(tensor.shape(sizes_of(weights.model)), np.float32)
            for tensor in tensors(weights.model) if tensor.name.startswith('cls/predictions/')
            and weights.has('cls/seq_relationship')}
    return outputs(dataclasses.replace(weights, params=rest | weights.params), inputs)


def in_files(params, model):
    """The parameters as transformers has them."""
    return from_params(
        BERT.forms_in_any(BERT.architectures[0]), params, model)


def load_silently(kind, folder):
    """transformers' model of a folder; nothing is missing, unexpected, misshapen or warned of."""
    with unittest.TestCase().assertNoLogs('transformers', 'WARNING'):
        model, info = getattr(transformers, kind).from_pretrained(
            folder, output_loading_info=True, local_files_only=True)
    assert not any(info.values()), info
    return model.eval()


def assert_close(found, expected):
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('seed', range(len(CLASSES)), ids=lambda seed: f'{seed}-{CLASSES[seed]}')
def test_a_random_model_there_and_back(seed, tmp_path):
    model = random_model(seed)
    kind = CLASSES[seed]
    inputs = random_inputs(model.config, kind, seed)
    expected = theirs(model, inputs)
    assert expected
    model.save_pretrained(tmp_path / 'theirs')
    weights = load_weights(tmp_path / 'theirs')
    assert_close(real(ours(weights, inputs), inputs), real(expected, inputs))

    write_huggingface(tmp_path / 'hf', weights)
    back = load_silently(kind, tmp_path / 'hf')
    for name, x in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], x), name
    assert_close(theirs(back, inputs), expected)
    for field in ('id2label', 'label2id', 'layer_norm_eps', 'architectures'):
        assert getattr(back.config, field) == getattr(model.config, field)
    assert_same(weights, load_weights(tmp_path / 'hf'))


def test_a_left_to_right_model(tmp_path):
    model = random_model(1)
    model.save_pretrained(tmp_path)
    weights = load_weights(tmp_path)
    decoder = transformers.BertLMHeadModel(transformers.BertConfig(
        **model.config.to_dict() | {'is_decoder': True, 'use_cache': False}))
    decoder.load_state_dict(model.state_dict(), strict=False)
    inputs = random_inputs(model.config, 'BertForPreTraining', 1)
    masked = inputs['attention_mask'] == 1
    weights = dataclasses.replace(weights, model=weights.model | {'causal': True})
    found = outputs(weights, inputs)['prediction_logits']
    np.testing.assert_allclose(
        found[masked], theirs(decoder.eval(), inputs)['logits'][masked], rtol=0, atol=1e-5)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32'])
def test_shards_of_any_precision(dtype, tmp_path):
    model = random_model(1).to(getattr(torch, dtype))
    model.save_pretrained(tmp_path, max_shard_size='4KB')
    assert len(list(tmp_path.glob('model-*.safetensors'))) > 1
    weights = load_weights(tmp_path)
    for name, x in in_files(weights.params, weights.model).items():
        assert x.dtype == np.float32
        np.testing.assert_array_equal(x, model.state_dict()[name].float().numpy(), err_msg=name)


def test_a_head_without_pooler_is_written_without_it(tmp_path):
    """A question answering model of the original has a pooler, that of transformers none."""
    model = random_model(8)
    model.save_pretrained(tmp_path / 'theirs')
    weights = load_weights(tmp_path / 'theirs')
    hidden = weights.model['hidden_size']
    weights.params.update({'bert/pooler/dense/kernel': np.ones((hidden, hidden), np.float32),
                           'bert/pooler/dense/bias': np.ones(hidden, np.float32)})
    notes = write_huggingface(tmp_path / 'hf', weights)
    assert notes[0] == 'left out: bert/pooler (BertForQuestionAnswering has none)'
    load_silently('BertForQuestionAnswering', tmp_path / 'hf')


def test_an_encoder_without_pooler(tmp_path):
    encoder = transformers.BertModel(random_model(0).config, add_pooling_layer=False)
    encoder.save_pretrained(tmp_path / 'theirs')
    weights = load_weights(tmp_path / 'theirs')
    assert weights.head == '' and not weights.has('bert/pooler')
    notes = write_huggingface(tmp_path / 'hf', weights)
    assert notes[0] == 'there is no pooler: load it with add_pooling_layer=False'
    transformers.BertModel.from_pretrained(tmp_path / 'hf', add_pooling_layer=False)
    assert_same(weights, load_weights(tmp_path / 'hf'))


def test_the_tokenizer_of_an_exported_model_gives_our_ids(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))  # the cache
    weights = load_weights(RECORDED / 'classification')
    write_huggingface(tmp_path / 'hf', weights)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf', local_files_only=True)
    ours = load_tokenizer(weights.vocab_file, weights.lowercase)
    assert theirs.model_max_length == 10
    library = tokenizers.Tokenizer.from_file(str(tmp_path / 'hf' / 'tokenizer.json'))
    long = 'a' * 150  # BERT splits it, as must tokenizer.json; transformers' tokenizer may not
    for text in ('a cat, a sea. B e\u0301', 'tases o', 'x', 'no', long, 'a' * 201):
        ids = [ours.vocab.cls_id, *ours.encode(text), ours.vocab.sep_id]
        assert library.encode(text).ids == ids
        if text != long:
            assert theirs(text, max_length=None)['input_ids'] == ids
        pair = library.encode(text, 'no')
        assert pair.ids == [*ids, *ours.encode('no'), ours.vocab.sep_id]
        assert pair.type_ids == [0] * len(ids) + [1] * (len(pair.ids) - len(ids))
    # transformers 5 writes the vocabulary into tokenizer.json alone, which is read as well.
    theirs.save_pretrained(tmp_path / 'again')
    for name in ('config.json', 'model.safetensors'):
        (tmp_path / 'again' / name).write_bytes((tmp_path / 'hf' / name).read_bytes())
    again = load_weights(tmp_path / 'again')
    assert again.vocab_file.read_text() == weights.vocab_file.read_text()
