"""Predicts with a model: prints a line of JSON for each text, in the order of the texts.

    python -m bert_jax.predict fill-mask --model runs/tiny_pretrain "The list is [MASK] in place."
    python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."
    python -m bert_jax.predict score --model DIR --input sentences.txt > scores.jsonl
    python -m bert_jax.predict features --model DIR --pool=mean --output vectors.npz < texts.txt
    python -m bert_jax.predict rerank --model DIR "How to cook rice?" "Boil it." "Ask a baker."
    python -m bert_jax.predict classify --model BASE --adapter rte --adapter cola "A fine film."
    python -m bert_jax.predict export --model DIR --output bert.stablehlo

A model is a run directory of bert_jax.main, a Hugging Face folder, hf:ORG/NAME for one of the hub,
a folder of peft that names its base, or a TF1 checkpoint (its folder or prefix). Texts come from
the arguments, from --input FILE, or from standard input. Files hold one text per line in UTF-8;
from a .csv, .tsv, .jsonl or .parquet file, the columns that --text and --text-pair name are read
(by default those that the run was trained on), and --id names its rows.
`COMMAND --help` describes what a command reads and writes. For a text that cannot be read, the
result has the reason in "error" and null in place of what was wanted.

Exit status: 0 done, 3 some texts have no result (the last line says how many), 2 bad input (one
line on standard error) or no text has a result, 1 anything else.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bert_jax.config.choices import POOLS
from bert_jax.config.command_line import Parser
from bert_jax.predict import inputs, outputs
from bert_jax.predict.inputs import Source
from bert_jax.rows.squad_reader import has_rows
from bert_jax.rows.table import format_of
from bert_jax.runtime.arriving import WAIT_SECONDS
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import as_path, check_new_file
from bert_jax.runtime.process import error_boundary

if TYPE_CHECKING:
    from bert_jax.predict.model import Model

_SOME_FAILED = 3  # the exit status


def _fill_mask(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """The likeliest words for each [MASK].

        python -m bert_jax.predict fill-mask --model DIR "Paris is the [MASK] of France."

    Reads texts with one [MASK] or more.
    Writes {"text", "predictions": [{"token", "id", "probability", "sequence"}, ...]};
    with several [MASK] in a text, "predictions" is a list of such lists. If a text is too
    long for the model, each [MASK] sees only the tokens around it.
    """
    return model.iter_fill_mask(source.texts(inputs.SingleText()), args.top_k)


def _next_sentence(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """The probability that the second text follows the first.

        python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."

    Reads two texts: two arguments, or a line with a TAB between them.
    Writes {"first", "second", "probability"}.
    """
    return model.iter_next_sentence(source.texts(inputs.Pair()))


def _classify(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """Labels or values of texts or pairs, or the ending that fits.

        python -m bert_jax.predict classify --model DIR "A fine film." "A dull one."

    Reads texts, or pairs with a TAB between the two texts; with --pairs, arguments are
    taken two at a time. A multiple-choice model reads a beginning and its possible endings:
    one argument each, or a line with TABs between them.
    Writes {"text" or "first" and "second", "label", "probability", "probabilities"}.
    A multi-label model writes "labels", those with a probability above 0.5, and
    "probabilities"; a regression model "value"; a multiple-choice model {"text", "choices",
    "choice", "probability", "probabilities"}, where "choice" counts from 0.
    A run on pairs gives an error for a single text, and one on single texts for a pair, unless
    --any-form asks for them.
    """
    if model.weights.head == 'multiple_choice':
        return model.iter_classify(source.texts(inputs.Choices()), args.windows)
    form = inputs.Pair() if args.pairs else inputs.Parts()
    return model.iter_classify(source.texts(form), args.windows, args.any_form)


def _rerank(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """Documents of a query in the order of their scores.

        python -m bert_jax.predict rerank --model DIR "How do I cook rice?" "Boil it." "No."

    Reads a query and its documents: one argument each, a line with TABs between them, or columns
    of a table (--text; --choices names those of documents, or one with a list of them).
    Writes {"query", "ranking": [{"index", "score", "text"}, ...]}, the highest score first;
    "index" counts the documents from 0.
    """
    return model.iter_rerank(source.texts(inputs.Choices()))


def _answer(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """The span of a context that answers a question.

        python -m bert_jax.predict answer --model DIR "Who wrote it?" "It was written by Anna Berg."

    Reads question and context: two arguments, a line with a TAB between them, a line
    {"question": ..., "context": ...}, two columns of a table (by default these names), or a
    .json file in SQuAD's layout, whose ids the results have.
    Writes {"question", "answer", "start", "end", "score", "probability"}; the answer is
    context[start:end]. Long contexts are read in overlapping windows, as in the run's
    evaluation.
    """
    questions = source.texts(inputs.QuestionAndContext())
    return model.iter_answer(questions, args.max_answer_length, args.null_threshold)


def _tag(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """A label for each word, and entities.

        python -m bert_jax.predict tag --model DIR "Anna Berg lives in Oslo ."

    Reads texts, which the tokenizer splits into words, or a column with lists of words, which
    stay as they are.
    Writes {"text", "tags": [{"word", "label", "probability", "start", "end"}, ...],
    "entities": [{"text", "label", "start", "end", "probability"}, ...]}, start and end in
    characters. Long texts are read in overlapping windows; no word is left out.
    """
    return model.iter_tag(source.texts(inputs.Words()), args.aggregation)


def _features(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """Hidden states of tokens, or one vector per text.

        python -m bert_jax.predict features --model DIR --layers=-1,-2 --input texts.txt

    Reads texts or pairs (a TAB or " ||| " between two texts). A text that is too long for
    the model is cut (with --pool, see --windows).
    Writes what extract_features.py of google-research/bert does: {"linex_index",
    "features": [{"token", "layers": [{"index", "values"}]}]}, six decimals, [CLS] and
    [SEP] included; with --pool or --prompt {"linex_index", "vector"}.
    With --output FILE.npz it writes float32 arrays instead: `values` [tokens of all texts,
    layers, hidden], `tokens` (their strings), `offsets` [texts + 1] (text i is
    values[offsets[i]:offsets[i + 1]]) and `layers`; for vectors `vectors` [texts, hidden].
    """
    layers = args.layers
    texts = source.texts(inputs.Parts(' ||| '))
    hidden_size = model.config.hidden_size
    if args.pool or args.prompt:
        if len(layers) != 1:
            option = '--pool' if args.pool else '--prompt'
            raise InputError(f'{option} takes one layer, --layers names {len(layers)}')
        vectors = model.iter_vectors(
            texts, args.pool, layers[0], args.normalize, args.windows, args.prompt)
        if args.output is not None:
            return outputs.write_vectors(args.output, vectors, hidden_size)
        return outputs.vector_lines(vectors)
    if args.windows or args.normalize:
        raise InputError('--windows and --normalize are for one vector of a text: add --pool')
    features = model.iter_features(texts, layers)
    if args.output is not None:
        return outputs.write_features(args.output, features, layers, hidden_size)
    return outputs.feature_lines(features, layers)


def _score(model: Model, args: argparse.Namespace, source: Source) -> Iterator[Any]:
    """Pseudo-perplexity.

        python -m bert_jax.predict score --model DIR --input sentences.txt

    Reads texts. Each token is masked in turn (Salazar et al., 2020).
    Writes {"text", "num_tokens", "log_probability", "pseudo_perplexity"} and, after the
    last text, one more line: {"corpus": {"num_texts", "num_tokens", "log_probability",
    "pseudo_perplexity"}}. pseudo_perplexity = exp(-log_probability / num_tokens).
    """
    from bert_jax.predict.masked_words import pseudo_perplexity

    num_texts = 0
    num_tokens = 0
    log_probability = 0.0
    for score in model.iter_score(source.texts(inputs.SingleText())):
        if 'error' not in score:
            num_texts += 1
            num_tokens += score['num_tokens']
            log_probability += score['log_probability']
        yield score
    yield {'corpus': {
        'num_texts': num_texts, 'num_tokens': num_tokens, 'log_probability': log_probability,
        'pseudo_perplexity': pseudo_perplexity(log_probability, num_tokens),
    }}


def _export(model: Model, args: argparse.Namespace, source: None) -> Iterator[Any]:
    """The model's computation as a file that other programs can run.

        python -m bert_jax.predict export --model DIR --output bert.stablehlo

    Writes the model's computation, for any number of rows and tokens. The file is kept
    only if its outputs on a few rows agree with the model's.
    --to onnx: a file for ONNX Runtime; needs jax2onnx and onnxruntime. Its inputs have Hugging
    Face's names (input_ids, attention_mask, token_type_ids):

        inputs = tokenizer(["A fine film."], return_tensors="np")  # of transformers
        session = onnxruntime.InferenceSession("bert.onnx")
        session.run(["logits"], dict(inputs))

    --to stablehlo: FILE and, beside it, the parameters as .npz. They run where only jax,
    numpy and flatbuffers are installed, on CPU, CUDA and TPU:

        from jax import export; import jax, numpy as np
        bert = export.deserialize(bytearray(open("bert.stablehlo", "rb").read()))
        params = dict(np.load("bert.npz"))
        jax.jit(bert.call)(params, input_ids, input_mask, segment_ids)

    All inputs are int32 (of ONNX files int64) [rows, tokens]. A model with a masked-LM head takes
    masked_lm_positions [rows, positions] too. Outputs by name: sequence_output,
    pooled_output and the logits of the head.
    Prints {"output", "inputs", "outputs", "largest_difference", ...}.
    """
    from bert_jax.predict.export import export_model

    yield export_model(model, as_path(args.output), args.to, args.opset)


def layers(text: str) -> list[int]:
    """Parses --layers; for a ValueError, argparse prints this function's name."""
    return [int(number) for number in text.split(',')]


def seconds(text: str) -> float:
    """Parses --wait; for a ValueError, argparse prints this function's name."""
    number = float(text)
    if not 0 <= number <= threading.TIMEOUT_MAX:
        raise ValueError
    return number


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--model', required=True, metavar='DIR',
        help='run directory, Hugging Face folder, hf:ORG/NAME, folder of peft or TF1 checkpoint')
    parser.add_argument(
        '--adapter', action='append', default=[], metavar='DIR',
        help='a folder of peft with an adapter of the model and its head, or a run that trained '
        'these, or a head alone, on the model; or the name of an adapter that the files of the '
        'model hold for a task; with several, a result has "adapters", what each says by its name')
    parser.add_argument(
        '--dtype', choices=['float32', 'bfloat16'],
        help='of the computation; default: float32 on CPUs, else bfloat16')
    parser.add_argument(
        '--vocab-file', metavar='FILE',
        help='the vocabulary, where it does not lie beside the weights')


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('texts', nargs='*', metavar='TEXT')
    parser.add_argument(
        '--input', metavar='FILE',
        help='of texts, one a line; or a .csv, .tsv, .jsonl or .parquet')
    parser.add_argument(
        '--text', metavar='COLUMN', help='of that file with the texts (questions)')
    parser.add_argument(
        '--text-pair', metavar='COLUMN', help='with the second texts (contexts)')
    parser.add_argument(
        '--id', metavar='COLUMN', help='that names the row in its result, as "id"')
    parser.add_argument(
        '--wait', type=seconds, metavar='SECONDS',
        help='that a line of a pipe waits for others before it is answered; longer: fuller batches '
        f'({WAIT_SECONDS:g})')


def _add_fill_mask_flags(parser: argparse.ArgumentParser) -> None:
    _add_text_flags(parser)
    parser.add_argument(
        '--top-k', type=int, default=5, metavar='N', help='words for each [MASK] (5)')


def _add_choices_flags(parser: argparse.ArgumentParser) -> None:
    _add_text_flags(parser)
    parser.add_argument(
        '--choices', metavar='COLUMN,COLUMN,...', default='',
        help='with the choices (documents), or one with a list of them')


def _add_classify_flags(parser: argparse.ArgumentParser) -> None:
    _add_choices_flags(parser)
    parser.add_argument('--pairs', action='store_true', help='take the arguments two at a time')
    parser.add_argument(
        '--any-form', action='store_true',
        help='single texts for a model that was trained on pairs, or pairs for one of single texts')
    _add_windows_flag(parser)


def _add_windows_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--windows', choices=['first', 'mean', 'max'],
        help='a text that is too long is cut, or read in windows whose probabilities or vectors '
        'are combined (as its run had it, else first)')


def _add_answer_flags(parser: argparse.ArgumentParser) -> None:
    _add_text_flags(parser)
    parser.add_argument(
        '--max-answer-length', type=int, default=30, metavar='N', help='in tokens (30)')
    parser.add_argument(
        '--null-threshold', type=float, metavar='X',
        help='answer "" where its score is above that of all others by more than this (as a SQuAD '
        '2.0 run determined it, else never)')


def _add_tag_flags(parser: argparse.ArgumentParser) -> None:
    _add_text_flags(parser)
    parser.add_argument(
        '--aggregation', choices=['first', 'simple'], default='first',
        help='a word has the label of its first token, or every token its own (first)')


def _add_features_flags(parser: argparse.ArgumentParser) -> None:
    _add_text_flags(parser)
    parser.add_argument(
        '--layers', type=layers, default='-1', metavar='N,N,...',
        help='counted from the top, written as --layers=-1,-2,-3,-4; one below the first are the '
        'embeddings (-1)')
    parser.add_argument(
        '--pool', choices=POOLS,
        help='one vector a text: the mean or maximum over all its tokens, [CLS] and [SEP] among '
        'them, or the hidden state of [CLS]')
    parser.add_argument(
        '--normalize', action='store_true', default=None, help='brings vectors to length 1')
    parser.add_argument(
        '--prompt', metavar='NAME',
        help="one vector a text, after the model's prompt of this name, such as query or document; "
        'pooled as the model says')
    _add_windows_flag(parser)
    parser.add_argument('--output', metavar='FILE.npz', help='see above')


def _add_export_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--output', required=True, metavar='FILE', help='such as bert.stablehlo')
    parser.add_argument(
        '--to', choices=['stablehlo', 'onnx'], default='stablehlo',
        help='the format (stablehlo)')
    parser.add_argument(
        '--opset', type=int, choices=range(20, 25), default=23, help='of ONNX (23)')


class _Command(NamedTuple):
    """A command of this program.

    Attributes:
      run: turns the model, the arguments and the source of texts into objects to print. Its
        docstring is the command's help.
      add_flags: defines its flags beside those of the model.
    """

    run: Callable[[Model, argparse.Namespace, Any], Iterator[Any]]
    add_flags: Callable[[argparse.ArgumentParser], None] = _add_text_flags


_COMMANDS = {
    'fill-mask': _Command(_fill_mask, _add_fill_mask_flags),
    'next-sentence': _Command(_next_sentence),
    'classify': _Command(_classify, _add_classify_flags),
    'rerank': _Command(_rerank, _add_choices_flags),
    'answer': _Command(_answer, _add_answer_flags),
    'tag': _Command(_tag, _add_tag_flags),
    'features': _Command(_features, _add_features_flags),
    'score': _Command(_score),
    'export': _Command(_export, _add_export_flags),
}


def _parser() -> argparse.ArgumentParser:
    parser = Parser('python -m bert_jax.predict', __doc__)
    subparsers = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, command in _COMMANDS.items():
        described = inspect.getdoc(command.run) or ''
        first_line = described.partition('\n')[0]
        subparser = subparsers.add_parser(name, help=first_line, description=described)
        _add_model_flags(subparser)
        command.add_flags(subparser)
    return parser


def main() -> None:
    """Runs the command (see the top of this file)."""
    args = _parser().parse_args()
    output = getattr(args, 'output', None)
    with error_boundary(writing=output):
        sys.stdout.reconfigure(encoding='utf-8')  # type: ignore[union-attr]
        if output is not None:
            check_new_file(output, '--output')
        run = _run_export if args.command == 'export' else _run_on_texts
        num_failed = run(args)
    if num_failed:
        sys.exit(_SOME_FAILED)


def _run_export(args: argparse.Namespace) -> int:
    """Runs `export`; returns 0."""
    dtype = args.dtype or ('float32' if args.to == 'onnx' else None)
    model, *others = _load(args, dtype)
    if others:
        raise InputError(f'--adapter={args.adapter[1]}: export takes one adapter')
    return outputs.print_results(_export(model, args, None), is_exact=False)


def _run_on_texts(args: argparse.Namespace) -> int:
    """Runs any other command; returns the number of texts without a result."""
    source, id_column = _open_source(args)
    model, *others = _load(args, args.dtype)
    run = _COMMANDS[args.command].run
    results = run(_adapted([model, *others], args) if others else model, args, source)
    if id_column:
        results = _with_ids(results, source.ids(id_column))
    return outputs.print_results(results, is_exact=args.command == 'features')


def _load(args: argparse.Namespace, dtype: str | None) -> list[Model]:
    """The model, with each adapter, checked before anybody waits for standard input."""
    # Here, as `--help` need not wait for JAX.
    from bert_jax.loading import keep_programs, load, load_adapted

    keep_programs(in_command=True)
    if args.adapter:
        models = load_adapted(args.model, args.adapter, args.vocab_file, dtype)
    else:
        models = [load(args.model, args.vocab_file, dtype)]
    for model in models:
        model.require(args.command)
        model.note = lambda line: tell(f'note: {line}')
    return models


def _adapted(models: Sequence[Model], args: argparse.Namespace) -> Any:
    """The model with several adapters.

    Raises:
      InputError: the command takes one, or the models take different texts.
    """
    from bert_jax.predict.adapted import Adapted

    if args.command not in ('classify', 'answer', 'tag'):
        raise InputError(f'--adapter={args.adapter[1]}: {args.command} takes one adapter')
    takes_choices = {model.weights.head == 'multiple_choice' for model in models}
    if len(takes_choices) > 1:
        raise InputError('--adapter: some are for multiple choice, others are not: run them apart')
    names = [as_path(adapter).name for adapter in args.adapter]
    if len(set(names)) < len(names):
        names = list(args.adapter)
    return Adapted(dict(zip(names, models, strict=True)))


def _with_ids(results: Iterator[Any], ids: Iterator[Any]) -> Iterator[Any]:
    for result in results:
        yield result if 'corpus' in result else {'id': next(ids), **result}


def _open_source(args: argparse.Namespace) -> tuple[Source, str | None]:
    """(The texts that the arguments name, the column that names them in results).

    Raises:
      InputError: the arguments contradict each other, or what they name cannot be read.
    """
    columns = _named_columns(args)
    table_format = format_of(args.input or '')
    if args.id and (not table_format or getattr(args, 'output', None)):
        raise InputError(f'--id={args.id} names a column of --input, for results in JSON lines')
    if table_format and not columns:
        columns = _columns_of_run(args)
    if args.command == 'answer' and table_format and not columns:
        # It has SQuAD's layout, or a question in each row.
        if table_format == 'json' and not has_rows(args.input) and args.wait is None:
            return inputs.SquadFile(args.input), args.id or 'id'
        columns = ['question', 'context']
    source = inputs.open_source(args.texts, args.input, columns, args.wait)
    if args.id:
        next(source.ids(args.id), None)  # fails now if there is no such column
    return source, args.id


def _named_columns(args: argparse.Namespace) -> list[str]:
    """The columns that --text, --text-pair and --choices name."""
    choices = [column for column in getattr(args, 'choices', '').split(',') if column]
    if choices and (args.text_pair or not args.text):
        raise InputError('--choices go with the column --text, in place of --text-pair')
    if args.text_pair and not args.text:
        raise InputError('--text-pair names the second column: name the first with --text')
    return [column for column in (args.text, args.text_pair, *choices) if column]


def _columns_of_run(args: argparse.Namespace) -> list[str]:
    """The columns that a run on an own table was trained on; [] if there is no such run."""
    from bert_jax.run.description import read_config
    from bert_jax.run.layout import is_described, is_run, run_of

    if args.command not in ('classify', 'tag'):
        return []
    folders = [run_of(as_path(named)) for named in (*args.adapter, args.model)]
    runs = [folder for folder in folders if is_run(folder) and is_described(folder)]
    if not runs:
        return []
    fields = read_config(runs[0])
    if fields.get('task') not in ('classification', 'regression', 'multiple_choice', 'tagging'):
        return []
    data = fields.get('data') or {}
    others = [data.get('text_pair') or '', *(data.get('choices') or '').split(',')]
    columns = [data.get('text') or 'text', *(name.strip() for name in others if name.strip())]
    tell(f'read from {args.input}: {", ".join(columns)}, as in training (--text names others)')
    return columns


if __name__ == '__main__':
    main()
