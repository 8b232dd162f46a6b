"""Every family and class of transformers: there and back, and what our model computes."""

import dataclasses
import functools
import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.answers import engine
from bert_jax.foreign import load_weights
from bert_jax.foreign.families.bert import ACTS
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.heads import HEADS
from bert_jax.model.layers import ModelConfig, activation
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Sequences
from bert_jax.step.optimizers import OptimizerOptions, make_optimizer
from bert_jax.step.schedules import ScheduleSegment, make_schedule
from bert_jax.step.step import TrainState, parameters_of
from bert_jax.weights.parameters import from_tree, to_tree
from bert_jax.weights.warm_start import place
from tests.foreign.run_model import assert_same, outputs, real
from tests.tiny_models import fixed_step
from tests.train.toy import mesh

pytestmark = [pytest.mark.slow, pytest.mark.extras]

torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
from tests.foreign import family_models  # noqa: E402

LENGTHS = (16, 41)
# Each of two outputs of size 4 in float32 may be 9e-6 from what float64 gives, as on an EPYC.
TOLERANCE = 2e-5
# Fields of config.json that are not kept: the ids of special tokens come from the vocabulary, which
# these models lack, and the others change only how the model is trained or called there.
NOT_KEPT = {
    'transformers_version', 'bos_token_id', 'eos_token_id', 'cls_token_id', 'sep_token_id',
    'mask_token_id', 'pad_token_id', 'qa_dropout', '_name_or_path',
}
# XLM-R and CamemBERT are written as what they are, RoBERTa.
RENAMED = {'XLMRoberta': 'Roberta', 'Camembert': 'Roberta'}


def read_back(class_name, folder):
    """transformers' model of a folder; nothing is missing, unexpected, misshapen or warned of."""
    with unittest.TestCase().assertNoLogs('transformers', 'WARNING'):
        model, info = getattr(transformers, class_name).from_pretrained(
            folder, output_loading_info=True, local_files_only=True)
    assert not any(info.values()), info
    return model.eval()


@pytest.mark.parametrize('variant, kind', family_models.every_model())
def test_a_random_model_there_and_back(variant, kind, tmp_path):
    model = family_models.random_model(variant, kind)
    model.save_pretrained(tmp_path / 'theirs')
    weights = load_weights(tmp_path / 'theirs')
    if kind == 'ForPreTraining' and variant == 'albert':
        assert_only_the_order_is_left_out(weights, model, tmp_path)
        return
    assert weights.unused == ()

    write_huggingface(tmp_path / 'hf', weights)
    class_name = type(model).__name__
    for begin, written in RENAMED.items():
        class_name = class_name.replace(begin, written)
    back = read_back(class_name, tmp_path / 'hf')
    assert_same(weights, load_weights(tmp_path / 'hf'))
    if variant == 'modernbert with some biases':
        assert_zeros_were_added(back, model)
        return
    assert_same_tensors(back, model)
    if class_name == type(model).__name__:
        there = model.config.to_dict()
        here = back.config.to_dict()
        for field in there.keys() - NOT_KEPT:
            assert here[field] == there[field], field


def assert_only_the_order_is_left_out(weights, model, folder):
    """ALBERT's head for the order of two texts is named and not taken for BERT's next sentence."""
    order = {name for name in model.state_dict() if name.startswith('sop_classifier.')}
    assert set(weights.unused) == order and not weights.has('cls/seq_relationship')
    write_huggingface(folder / 'hf', weights)
    back = transformers.AlbertForPreTraining.from_pretrained(folder / 'hf').state_dict()
    for name, x in model.state_dict().items():
        assert name in order or torch.equal(back[name], x), name
    of_bert = {f'cls/seq_relationship/{leaf}': np.zeros(shape, np.float32)
               for leaf, shape in (('kernel', (24, 2)), ('bias', 2))}
    with_pairs = dataclasses.replace(weights, params=weights.params | of_bert)
    notes = write_huggingface(folder / 'pairs', with_pairs)
    assert 'left out: cls/seq_relationship (AlbertForPreTraining has none)' in notes


def assert_same_tensors(a, b):
    """The same names and numbers, bit for bit."""
    tensors = a.state_dict()
    assert tensors.keys() == b.state_dict().keys()
    for name, x in b.state_dict().items():
        assert torch.equal(tensors[name], x), name


def assert_zeros_were_added(found, model):
    """The tensors of a model, and biases that are 0."""
    tensors = model.state_dict()
    for name, x in found.state_dict().items():
        if name in tensors:
            assert torch.equal(tensors[name], x), name
        else:
            assert name.endswith('bias') and not x.any(), name


@pytest.mark.parametrize('variant, kind', family_models.every_model())
def test_logits_of_padded_batches_and_of_packed_rows(variant, kind, tmp_path):
    if kind == 'ForNextSentencePrediction':
        pytest.skip('without a masked-LM head; next-sentence logits are those of ForPreTraining')
    model = family_models.random_model(variant, kind)
    model.save_pretrained(tmp_path)
    weights = load_weights(tmp_path)
    batches = [family_models.random_inputs(model, length) for length in LENGTHS]
    expected = [
        named_as_ours(family_models.outputs_of(model, inputs), kind) for inputs in batches]
    assert expected[0]
    together = in_one_batch(batches, model.config.pad_token_id)
    found = real(outputs(weights, together), together)
    of_batches = [
        real(theirs, inputs) for theirs, inputs in zip(expected, batches, strict=True)]
    for name in of_batches[0]:
        np.testing.assert_allclose(
            found[name], np.concatenate([theirs[name] for theirs in of_batches]), rtol=0,
            atol=TOLERANCE, err_msg=name)
    check_packed(weights, kind, batches, expected)


def in_one_batch(batches, pad_token_id):
    """Inputs of several lengths, padded to the longest, in one batch: one program to compile."""
    longest = max(inputs['input_ids'].shape[-1] for inputs in batches)
    together = {}
    for name in batches[0]:
        padding = pad_token_id if name == 'input_ids' else 0
        rows = []
        for inputs in batches:
            x = inputs[name]
            added = [(0, 0)] * (x.ndim - 1) + [(0, longest - x.shape[-1])]
            rows.append(np.pad(x, added, constant_values=padding))
        together[name] = np.concatenate(rows)
    return together


def named_as_ours(theirs, kind):
    """Outputs by the names that `run_model.outputs` has."""
    if kind == 'ForNextSentencePrediction':
        return {'seq_relationship_logits': theirs['logits']}
    if 'sop_logits' in theirs:  # of ALBERT's ForPreTraining, which is not read
        return {'logits': theirs['prediction_logits']}
    return theirs


def check_packed(weights, kind, batches, expected):
    """Compares the outputs of all sequences, several a row, with those of padded batches."""
    config = ModelConfig(**weights.model)
    if kind in ('ForPreTraining', 'ForNextSentencePrediction') and weights.head == 'pretraining':
        return  # the engine has a function for each output, and these are those of other classes
    choices = 3 if kind == 'ForMultipleChoice' else 1
    ids = []
    first_lengths = []
    wanted = []
    for inputs, theirs in zip(batches, expected, strict=True):
        masks = inputs['attention_mask'].reshape(-1, inputs['attention_mask'].shape[-1])
        rows = inputs['input_ids'].reshape(masks.shape)
        x = next(iter(theirs.values()))
        if kind == 'ForQuestionAnswering':
            x = np.stack([theirs['start_logits'], theirs['end_logits']], axis=-1)
        types = inputs['token_type_ids'].reshape(masks.shape)
        for i, length in enumerate(masks.sum(1)):
            ids.append(rows[i, :length])
            first_lengths.append(length - types[i, :length].sum())
        if x.shape[:2] == masks.shape:
            wanted.append(x[masks == 1])
        else:
            wanted.append(x)
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in ids])])
    units = Units(
        Sequences.of_segments(
            np.concatenate(ids).astype(np.int32), offsets, np.array(first_lengths)),
        choices=choices)
    params = to_tree(weights.params, config.padded_vocab_size)
    runner = engine.Engine(mesh(), token_cost=lambda row_length: 1.0)
    found = runner.outputs(packed_function(weights, config, choices), params, units)
    found = found['packed']
    wanted = np.concatenate(wanted)
    if kind == 'ForMaskedLM':
        found = found[..., : config.vocab_size]
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=0, atol=TOLERANCE)


def packed_function(weights, config, choices):
    """The function of a packed batch that gives a class's outputs."""
    if weights.head in ('', 'pretraining'):
        return functools.partial(states_or_logits, config, weights.head)
    head = HEADS[weights.head].of_model(config, choices if choices > 1 else weights.num_labels, {})
    return functools.partial(head_outputs, head)


def states_or_logits(config, head, params, batch):
    states = engine.hidden_states(config, (-1,), params, batch)['values'][:, :, 0]
    if not head:
        return {'packed': states}
    return {'packed': engine.predicted_tokens(config, params, states)}


def head_outputs(head, params, batch):
    found = head.outputs(params, batch)
    if 'start_logits' in found:
        return {'packed': jnp.stack([found['start_logits'], found['end_logits']], axis=-1)}
    return {'packed': found['logits']}


def test_every_activation_of_transformers_that_is_one_of_ours_is_read_as_that():
    x = np.linspace(-20, 20, 2001, dtype=np.float32)
    ours = {form: activation(x, form) for form in set(ACTS.values())}
    equal = {}
    for word in transformers.activations.ACT2CLS:
        theirs = transformers.activations.ACT2FN[word](torch.tensor(x)).detach().float().numpy()
        for form, y in ours.items():
            if np.abs(theirs - y).max() < 1e-5:
                equal[word] = form
    assert equal == ACTS


# Fields that the named class does not read, or reads and others do not.
FIELDS_OF_CLASSES = [
    ('bert', 'ForMaskedLM', {'hidden_act': 'relu'}),
    ('bert', 'ForMaskedLM', {'hidden_act': 'silu'}),
    ('bert', 'ForMaskedLM', {'hidden_act': 'gelu_accurate'}),
    ('albert', 'ForMaskedLM', {'hidden_act': 'gelu_python_tanh'}),
    ('distilbert', 'ForSequenceClassification', {'activation': 'swish'}),
    ('nomic', 'ForMaskedLM', {'hidden_act': 'relu'}),
    ('bert', 'ForTokenClassification', {'problem_type': 'multi_label_classification'}),
    ('distilbert', 'ForMultipleChoice', {'problem_type': 'multi_label_classification'}),
    ('modernbert', 'ForTokenClassification', {'problem_type': 'multi_label_classification'}),
    ('roberta', 'ForSequenceClassification', {'hidden_act': 'gelu_new'}),
    ('electra', 'ForPreTraining', {'hidden_act': 'gelu_fast'}),
    ('electra', 'ForSequenceClassification', {'hidden_act': 'gelu_fast', 'summary_type': 'last'}),
    ('electra', 'ForMultipleChoice', {'hidden_act': 'gelu_new'}),
    ('modernbert', 'ForSequenceClassification', {'classifier_activation': 'tanh'}),
    ('modernbert', 'Model', {'classifier_activation': 'mish', 'classifier_bias': True}),
    ('modernbert', 'ForMaskedLM', {'hidden_activation': 'silu', 'classifier_activation': 'swish'}),
    ('modernbert', 'ForSequenceClassification', {'classifier_activation': 'silu'}),
]


@pytest.mark.parametrize('variant, kind, fields', FIELDS_OF_CLASSES, ids=str)
def test_outputs_with_a_field_of_another_class(variant, kind, fields, tmp_path):
    model = family_models.random_model(variant, kind, **fields)
    model.save_pretrained(tmp_path)
    inputs = family_models.random_inputs(model, LENGTHS[0])
    theirs = family_models.outputs_of(model, inputs)
    found = outputs(load_weights(tmp_path), inputs)
    for name, x in real(theirs, inputs).items():
        np.testing.assert_allclose(
            real(found, inputs)[name], x, rtol=0, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize('variant', [
    'bert', 'roberta', 'distilbert', 'electra', 'modernbert', 'jina', 'nomic', 'gte', 'eurobert',
    'ultrabert', 'mpnet', 'albert'])
@pytest.mark.parametrize('there', ['Model', 'ForMaskedLM', 'ForSequenceClassification'])
def test_a_start_takes_the_layers_that_from_pretrained_takes(variant, there, tmp_path):
    """Those before the last layer, for each class as the target."""
    source = family_models.random_model(variant, there)
    source.save_pretrained(tmp_path / 'there')
    weights = load_weights(tmp_path / 'there')
    for here in family_models.classes_of(variant):
        if here in ('Model', *family_models.MORE_CLASSES.get(variant, ())):
            continue
        target = family_models.random_model(variant, here, seed=1)
        target.save_pretrained(tmp_path / here)
        wanted = load_weights(tmp_path / here)
        found = place(weights, {name: x.shape for name, x in wanted.params.items()},
                      head=wanted.head, labels=wanted.labels)
        theirs = type(target).from_pretrained(
            tmp_path / 'there', ignore_mismatched_sizes=True, **labels_of(target))
        theirs.save_pretrained(tmp_path / f'{here} from there')
        started = load_weights(tmp_path / f'{here} from there').params
        for name in wanted.params:
            if not name.startswith(('bert/pooler/', 'cls/predictions/transform/')):
                continue
            is_taken = any(np.array_equal(started[name], x) for x in weights.params.values())
            if name in found.params:
                np.testing.assert_array_equal(found.params[name], started[name], err_msg=name)
            else:
                assert name.endswith(('bias', 'scale')) or not is_taken, name


def labels_of(model):
    """The labels of a model, as arguments of `from_pretrained`."""
    return {'id2label': model.config.id2label, 'label2id': model.config.label2id}


# Of every family but ELECTRA, whose layers are BERT's.
TUNED = [
    ('bert', 'ForSequenceClassification'),
    ('roberta', 'ForSequenceClassification'),
    ('distilbert', 'ForSequenceClassification'),
    ('modernbert', 'ForTokenClassification'),
    ('modernbert of means', 'ForSequenceClassification'),
    ('jina', 'ForSequenceClassification'),
    ('nomic', 'ForTokenClassification'),
    ('gte', 'ForSequenceClassification'),
    ('eurobert of groups', 'ForSequenceClassification'),
    ('eurobert', 'ForSequenceClassification'),
    ('ultrabert', 'ForSequenceClassification'),
    ('mpnet', 'ForSequenceClassification'),
    ('albert', 'ForSequenceClassification'),
]


@pytest.mark.parametrize('variant, kind', TUNED)
def test_fine_tuning_is_that_of_torch(variant, kind, tmp_path):
    """Twelve steps with AdamW, warm-up, decay and clipping, from the same weights."""
    model = family_models.random_model(
        variant, kind, scale=0.3, **family_models.no_dropout(variant))
    model.save_pretrained(tmp_path)
    weights = load_weights(tmp_path)
    config = ModelConfig(**weights.model)
    assert config.hidden_dropout == config.classifier_dropout == config.pooler_dropout == 0.0
    head = HEADS[weights.head](config, 3)
    schedule = make_schedule([ScheduleSegment(0, 12, 2e-3, 4, 4)])
    optimizer = make_optimizer(
        OptimizerOptions('adamw', weight_decay=0.1, eps=1e-8), schedule, parameters_of(head))
    step = fixed_step(head, optimizer, schedule, mesh(), clip_norm=1.0)
    params = to_tree(weights.params, config.padded_vocab_size)
    state = jax.device_put(TrainState(np.int32(0), params, optimizer.init(params)))
    theirs = torch_optimizer(model)
    rates = transformers.get_linear_schedule_with_warmup(theirs, 4, 12)
    for seed in range(12):
        inputs = family_models.random_inputs(model, 11, seed)
        labels = np.random.default_rng(seed).integers(0, 3, (3, 1))
        if kind == 'ForTokenClassification':
            labels = np.random.default_rng(seed).integers(0, 3, (3, 11))
        state, metrics = step(state, our_batch(inputs, labels, head.weights))
        loss, norm = torch_step(model, theirs, inputs, labels)
        np.testing.assert_allclose(
            [metrics['loss'], metrics['grad_norm']], [loss, norm], rtol=1e-3)
        assert norm > 1
        rates.step()
    model.save_pretrained(tmp_path / 'trained')
    expected = load_weights(tmp_path / 'trained').params
    for name, x in from_tree(state.params, config.vocab_size).items():
        x, there = np.asarray(x), expected[name]
        if name.endswith('qkv/bias'):  # Adam magnifies rounding around 0, which keys' biases have
            x, there = np.delete(x, 1, axis=0), np.delete(there, 1, axis=0)
        np.testing.assert_allclose(x, there, rtol=0, atol=1e-4, err_msg=name)


def torch_optimizer(model):
    """AdamW that decays what transformers' trainer does."""
    decays = transformers.Trainer.get_decay_parameter_names(None, model)
    groups = []
    for decay in (False, True):
        of_group = [x for name, x in model.named_parameters() if (name in decays) == decay]
        groups.append({'params': of_group, 'weight_decay': 0.1 * decay})
    return torch.optim.AdamW(groups, lr=2e-3)


def torch_step(model, optimizer, inputs, labels):
    """(Loss, gradient norm before clipping) of a step of transformers' model."""
    optimizer.zero_grad()
    if labels.shape[1] == 1:
        labels = labels[:, 0]
    else:
        labels = np.where(inputs['attention_mask'] == 1, labels, -100)
    arguments = family_models.arguments_of(model, inputs | {'labels': labels})
    loss = model(**arguments).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item(), norm.item()


def our_batch(inputs, labels, weights):
    """A batch of one sequence a row, with labels of sequences or of tokens."""
    mask = inputs['attention_mask']
    arrays = {
        'input_ids': inputs['input_ids'],
        'sequence_ids': mask,
        'segment_ids': inputs['token_type_ids'],
        'cls_positions': np.zeros((len(mask), 1)),
        'labels' if labels.shape[1] == 1 else 'token_labels': labels,
    }
    batch = {name: x.astype(np.int32) for name, x in arrays.items()}
    batch['unit_weights'] = np.ones((len(mask), 1), np.float32)
    if weights == 'token_weights':
        batch['token_weights'] = mask.astype(np.float32)
    return batch
