"""Predicts with a model: prints a line of JSON for each text, in the order of the texts.

    python -m bert_jax.predict fill-mask --model runs/tiny_pretrain "The list is [MASK] in place."
    python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."
    python -m bert_jax.predict score --model DIR --input sentences.txt > scores.jsonl
    python -m bert_jax.predict features --model DIR --pool=mean --output vectors.npz < texts.txt
    python -m bert_jax.predict export --model DIR --output bert.stablehlo

A model is a run directory of bert_jax.main, a Hugging Face folder, or a TF1 checkpoint (its folder
or prefix). Texts come from the arguments, from --input FILE, or from standard input. Files hold one
text per line in UTF-8; from a .csv, .tsv, .jsonl or .parquet file, the columns that --text and
--text-pair name are read (by default those that the run was trained on), and --id names its rows.
`COMMAND --help` describes what a command reads and writes. For a text that cannot be read, the
result has the reason in "error" and null in place of what was wanted.

Exit status: 0 done, 3 some texts have no result (the last line says how many), 2 bad input (one
line on standard error) or no text has a result, 1 anything else.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.config.command_line import Parser
from bert_jax.data.table import Malformed, Row, format_of, read_rows, texts_of
from bert_jax.predict import load
from bert_jax.runtime.errors import InputError, Unreadable, tell
from bert_jax.runtime.files import (
    as_path,
    check_new_file,
    in_bucket,
    open_stream,
    open_whole,
    read_json,
)
from bert_jax.runtime.process import error_boundary

if TYPE_CHECKING:
    from bert_jax.predict.commands import Model

_NOTES = 20  # at most so many notes are printed
_PROGRESS = 10.0  # seconds between two lines of progress
_SOME_FAILED = 3  # the exit status


class Texts:
    """The texts of a command, read one by one as they are needed.

    A line or a table row is never skipped: for one that cannot be read, there is an error instead.
    A table is checked as a whole before anything is computed.
    """

    def __init__(self, arguments: Sequence[str], file: str | None, columns: Sequence[str] = ()):
        """Checks where the texts come from.

        Args:
          arguments: the texts; empty: they come from the file.
          file: a path; None: standard input, if there are no arguments.
          columns: the columns of a .csv, .tsv, .json, .jsonl or .parquet file that hold the texts
            and, if any, the second texts or choices.

        Raises:
          InputError: both texts and a file are given, the file cannot be read, or it has columns
            and none is named (its header would be read as a text).
        """
        if arguments and file is not None:
            raise InputError(f'give texts or --input={file}, not both')
        table = format_of(file or '')
        if columns and not table:
            raise InputError(f'--text={columns[0]} names a column: --input must be a file that has '
                             'some, ending in .csv, .tsv, .json or .jsonl, plain or .gz, or '
                             '.parquet')
        if table and not columns:
            raise InputError(f'--input={file} has columns: name the one with the texts, '
                             '--text=COLUMN (a file with a text in each line is called .txt)')
        ''.join(arguments).encode()  # may raise a UnicodeError, which is reported in one line
        self._arguments, self._file, self._columns = arguments, file, columns
        self._name = file or 'standard input'
        if columns and not sum(1 for _ in read_rows(self._name, columns)):
            raise InputError(f'{file} holds no rows: copy it again')
        if file is not None and not columns and not as_path(file).exists():
            raise InputError(f'--input={file}: No such file or directory')
        if not arguments and file is None and sys.stdin is None:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        if not arguments and file is None and sys.stdin.isatty():
            tell('texts from standard input, one a line; end with Ctrl-D')

    def read(self, form: str = 'text') -> Iterator[Any]:
        """Yields texts, or tuples of texts that belong together, or an error if one is unreadable.

        Args:
          form: 'text': each argument, line or row is a text; a table's cell may hold the list of
            its words. 'words': the same, and such a list stays one. 'parts': each holds one text,
            or several that belong together, with TABs between them or in columns; 'features': the
            same, with TABs or ' ||| '. 'pair': two arguments, a line with a TAB, or two columns;
            'question': the same, or a line of JSON. 'choices': all arguments together, a line with
            TABs, or columns, one of which may hold lists.

        Raises:
          InputError: there are no texts, the arguments or columns do not form pairs, or they do
            where single texts are wanted.
        """
        is_pair = form in ('pair', 'question')
        if form in ('text', 'words') and len(self._columns) > 1:
            raise InputError('single texts are wanted: leave out --text-pair')
        if is_pair and len(self._columns) == 1:
            raise InputError('two texts are wanted: name the second column with --text-pair')
        for row in self._rows(2 if is_pair else len(self._arguments) if form == 'choices' else 1):
            try:
                if row.fault:
                    raise Malformed(row.fault)
                cells = row.cells
                if form == 'choices':
                    cells = [x for cell in cells for x in (cell if type(cell) is list else [cell])]
                if form == 'words' and isinstance(cells[0], list):
                    yield texts_of(cells[0])  # each is tagged, also an empty one
                    continue
                if form == 'text' and isinstance(cells[0], list):  # words, as taggers have them
                    cells = [' '.join(texts_of(cells[0]))]
                if form not in ('text', 'words') and len(cells) == 1 and not self._columns:
                    cells = _split(cells[0], form)
                if is_pair and len(cells) != 2:
                    raise Malformed('two texts with a TAB between them are needed')
                cells = texts_of(cells)
                yield cells[0] if form in ('text', 'words') else tuple(cells)
            except Malformed as error:
                num = 2 if is_pair else len(self._columns) if form != 'choices' else 1
                yield Unreadable(f'{self._name}, line {row.line}: {error}', num)

    def ids(self, column: str) -> Iterator[Any]:
        """Yields what a column of the table holds, row by row; None where it cannot be read."""
        for row in read_rows(self._name, [column]):
            yield None if row.fault else row.cells[0]

    def _rows(self, size: int) -> Iterator[Row]:
        """Rows of `size` arguments, of the named columns of a table, or of one line each."""
        if self._arguments:
            texts = self._arguments
            if len(texts) % size:
                raise InputError(f'{len(texts)} texts are no pairs: two arguments are one pair '
                                 f'({texts[-1][:60]!r} has no second)')
            yield from (Row(i, list(texts[i : i + size])) for i in range(0, len(texts), size))
        elif self._columns:
            yield from read_rows(self._name, self._columns)
        else:
            given: Any = contextlib.nullcontext(sys.stdin and sys.stdin.buffer)
            number = 0
            try:
                with given if self._file is None else open_stream(self._file) as lines:
                    for number, line in enumerate(lines, 1):
                        try:
                            text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
                            yield Row(number, [text.rstrip('\r\n')])
                        except UnicodeDecodeError as error:
                            byte = error.object[error.start]
                            yield Row(number, [], f'not UTF-8 (byte 0x{byte:02x}): convert it')
            except OSError as error:
                raise InputError(f'{self._name} cannot be read ({error}): check it') from None
            if not number:
                raise InputError(f'{self._name} has no texts: write one a line')


class SquadTexts:
    """The questions of a file in SQuAD's layout, in place of `Texts`."""

    def __init__(self, file: str):
        from bert_jax.tasks.squad import questions_of

        self._questions = questions_of(file)

    def read(self, form: str) -> Iterator[tuple[str, str]]:
        del form  # questions only
        return ((question.text, question.context) for question in self._questions)

    def ids(self, column: str) -> Iterator[str]:
        del column  # a question has one
        return (question.id for question in self._questions)


def _split(line: str, form: str) -> list[Any]:
    """Splits a line into the texts that belong together."""
    if form == 'question' and line.lstrip().startswith('{'):
        try:
            record = json.loads(line)
            return [record['question'], record['context']]
        except (ValueError, KeyError, RecursionError):
            raise Malformed('it is no {"question": ..., "context": ...}') from None
    return (line.replace(' ||| ', '\t') if form == 'features' else line).split('\t')


# Flag -> keyword arguments of `add_argument`.
_MODEL: dict[str, dict[str, Any]] = {
    '--model': {'required': True, 'metavar': 'DIR',
                'help': 'run directory, Hugging Face folder or TF1 checkpoint'},
    '--dtype': {'choices': ['float32', 'bfloat16'],
                'help': 'of the computation; default: float32 on CPUs, else bfloat16'},
    '--vocab-file': {'metavar': 'FILE',
                     'help': 'the vocabulary, where it does not lie beside the weights'},
}
_TEXTS: dict[str, dict[str, Any]] = {
    'texts': {'nargs': '*', 'metavar': 'TEXT'},
    '--input': {'metavar': 'FILE',
                'help': 'of texts, one a line; or a .csv, .tsv, .jsonl or .parquet'},
    '--text': {'metavar': 'COLUMN', 'help': 'of that file with the texts (questions)'},
    '--text-pair': {'metavar': 'COLUMN', 'help': 'with the second texts (contexts)'},
    '--id': {'metavar': 'COLUMN', 'help': 'that names the row in its result, as "id"'},
}
_WINDOWS = {
    'choices': ['first', 'mean', 'max'], 'help': 'a text that is too long is cut, or read in '
    'windows whose probabilities or vectors are combined (as its run had it, else first)',
}


def _fill_mask(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The likeliest words for each [MASK].

        python -m bert_jax.predict fill-mask --model DIR "Paris is the [MASK] of France."

    Reads texts with one [MASK] or more.
    Writes {"text", "predictions": [{"token", "id", "probability", "sequence"}, ...]};
    with several [MASK] in a text, "predictions" is a list of such lists. If a text is too
    long for the model, each [MASK] sees only the tokens around it.
    """
    return model.iter_fill_mask(texts.read(), args.top_k)


def _next_sentence(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The probability that the second text follows the first.

        python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."

    Reads two texts: two arguments, or a line with a TAB between them.
    Writes {"first", "second", "probability"}.
    """
    return model.iter_next_sentence(texts.read('pair'))


def _classify(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
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
        return model.iter_classify(texts.read('choices'), args.windows)
    return model.iter_classify(
        texts.read('pair' if args.pairs else 'parts'), args.windows, args.any_form)


def _answer(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The span of a context that answers a question.

        python -m bert_jax.predict answer --model DIR "Who wrote it?" "It was written by Anna Berg."

    Reads question and context: two arguments, a line with a TAB between them, a line
    {"question": ..., "context": ...}, two columns of a table (by default these names), or a
    .json file in SQuAD's layout, whose ids the results have.
    Writes {"question", "answer", "start", "end", "score", "probability"}; the answer is
    context[start:end]. Long contexts are read in overlapping windows, as in the run's
    evaluation.
    """
    return model.iter_answer(texts.read('question'), args.max_answer_length, args.null_threshold)


def _tag(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """A label for each word, and entities.

        python -m bert_jax.predict tag --model DIR "Anna Berg lives in Oslo ."

    Reads texts whose words are separated by white space, or a column with lists of words.
    Writes {"text", "tags": [{"word", "label", "probability", "start", "end"}, ...],
    "entities": [{"text", "label", "start", "end", "probability"}, ...]}, start and end in
    characters. Long texts are read in overlapping windows; no word is left out.
    """
    return model.iter_tag(texts.read('words'))


def _features(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """Hidden states of tokens, or one vector per text.

        python -m bert_jax.predict features --model DIR --layers=-1,-2 --input texts.txt

    Reads texts or pairs (a TAB or " ||| " between two texts). A text that is too long for
    the model is cut (with --pool, see --windows).
    Writes what extract_features.py of google-research/bert does: {"linex_index",
    "features": [{"token", "layers": [{"index", "values"}]}]}, six decimals, [CLS] and
    [SEP] included; with --pool {"linex_index", "vector"}.
    With --output FILE.npz it writes float32 arrays instead: `values` [tokens of all texts,
    layers, hidden], `tokens` (their strings), `offsets` [texts + 1] (text i is
    values[offsets[i]:offsets[i + 1]]) and `layers`; with --pool `vectors` [texts, hidden].
    """
    layers = args.layers
    if args.pool and len(layers) != 1:
        raise InputError(f'--pool takes one layer, --layers names {len(layers)}')
    if (args.windows or args.normalize) and not args.pool:
        raise InputError('--windows and --normalize are for one vector of a text: add --pool')
    parts = texts.read('features')
    results: Iterable[dict[str, Any]]
    if not args.pool:
        results = model.iter_features(parts, layers)
    else:
        vectors = model.iter_vectors(parts, args.pool, layers[0], args.normalize, args.windows)
        results = ({'values': x[None]} | ({'error': 'it is no text'} if np.isnan(x).any() else {})
                   for x in vectors)
    if args.output is not None:
        yield from _write_npz(model, results, args.output, layers, args.pool)
        return
    for number, result in enumerate(results):
        if 'error' in result:
            result = {'vector' if args.pool else 'features': None, 'error': result['error']}
        else:
            values = np.round(result['values'].astype(np.float64), 6).tolist()
            result = {'vector': values[0]} if args.pool else {'features': [
                {'token': token, 'layers': [
                    {'index': layer, 'values': x} for layer, x in zip(layers, states, strict=True)]}
                for token, states in zip(result['tokens'], values, strict=True)]}
        yield {'linex_index': number} | result


def _write_npz(
    model: Model, results: Iterable[dict[str, Any]], output: str, layers: Sequence[int],
    pool: str | None,
) -> Iterator[dict[str, Any]]:
    """Writes `vectors`, or `values` with their tokens and offsets, into an .npz atomically.

    The large array grows in a temporary file and is never whole in memory. Yields an object for
    each text: its error, or nothing to print.
    """
    path = as_path(output)
    if path.suffix != '.npz':
        raise InputError(f'--output={output} must end in .npz')
    offsets, tokens, num_rows = [0], list[str](), 0
    with tempfile.TemporaryFile(dir=None if in_bucket(path) else path.parent) as file:
        for result in results:
            rows = result['values']
            if rows is not None:  # with --pool, errors have them too: a vector of NaN
                file.write(np.ascontiguousarray(rows, '<f4').data)
                tokens += result.get('tokens', ())
                num_rows += len(rows)
            offsets.append(len(tokens))
            yield {'linex_index': len(offsets) - 2, 'error': result['error']} if (
                'error' in result) else {}
        file.flush()
        hidden = model.config.hidden_size
        shape = (num_rows, hidden) if pool else (num_rows, len(layers), hidden)
        large = np.memmap(file, '<f4', 'r', shape=shape) if num_rows else np.zeros(shape, '<f4')
        arrays = {'vectors': large} if pool else {
            'values': large, 'tokens': np.array(tokens), 'offsets': np.array(offsets),
            'layers': np.array(layers)}
        with open_whole(path) as whole:
            np.savez(whole, **arrays)  # type: ignore[arg-type]


def _score(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """Pseudo-perplexity.

        python -m bert_jax.predict score --model DIR --input sentences.txt

    Reads texts. Each token is masked in turn (Salazar et al., 2020).
    Writes {"text", "num_tokens", "log_probability", "pseudo_perplexity"} and, after the
    last text, one more line: {"corpus": {"num_texts", "num_tokens", "log_probability",
    "pseudo_perplexity"}}. pseudo_perplexity = exp(-log_probability / num_tokens).
    """
    from bert_jax.predict.commands import pseudo_perplexity

    num_texts, num_tokens, log_probability = 0, 0, 0.0
    for score in model.iter_score(texts.read()):
        if 'error' not in score:
            num_texts += 1
            num_tokens += score['num_tokens']
            log_probability += score['log_probability']
        yield score
    yield {'corpus': {
        'num_texts': num_texts, 'num_tokens': num_tokens, 'log_probability': log_probability,
        'pseudo_perplexity': pseudo_perplexity(log_probability, num_tokens),
    }}


def _export(model: Model, args: argparse.Namespace, texts: None) -> Iterator[Any]:
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


# Command -> (a function that turns the model, the arguments and the texts into objects to print,
# and whose docstring is the command's help; its flags).
_COMMANDS: dict[str, tuple[Callable[[Model, Any, Any], Iterator[Any]], dict[str, Any]]] = {
    'fill-mask': (_fill_mask, _TEXTS | {'--top-k': {
        'type': int, 'default': 5, 'metavar': 'N', 'help': 'words for each [MASK] (5)'}}),
    'next-sentence': (_next_sentence, _TEXTS),
    'classify': (_classify, _TEXTS | {
        '--choices': {'metavar': 'COLUMN,COLUMN,...', 'default': '',
                      'help': 'with the choices, or one with a list of them'},
        '--pairs': {'action': 'store_true', 'help': 'take the arguments two at a time'},
        '--any-form': {'action': 'store_true', 'help': 'single texts for a model that was trained '
                       'on pairs, or pairs for one of single texts'},
        '--windows': _WINDOWS}),
    'answer': (_answer, _TEXTS | {
        '--max-answer-length': {
            'type': int, 'default': 30, 'metavar': 'N', 'help': 'in tokens (30)'},
        '--null-threshold': {
            'type': float, 'metavar': 'X', 'help': 'answer "" where its score is above that of all '
            'others by more than this (as a SQuAD 2.0 run determined it, else never)'}}),
    'tag': (_tag, _TEXTS),
    'features': (_features, _TEXTS | {
        '--layers': {'type': layers, 'default': '-1', 'metavar': 'N,N,...', 'help': 'counted from '
                     'the top, written as --layers=-1,-2,-3,-4; one below the first are the '
                     'embeddings (-1)'},
        '--pool': {'choices': ['mean', 'cls', 'max'], 'help': 'one vector a text: the mean or '
                   'maximum over all its tokens, [CLS] and [SEP] among them, or the hidden state '
                   'of [CLS]'},
        '--normalize': {
            'action': 'store_true', 'default': None, 'help': 'brings vectors to length 1'},
        '--windows': _WINDOWS, '--output': {'metavar': 'FILE.npz', 'help': 'see above'}}),
    'score': (_score, _TEXTS),
    'export': (_export, {
        '--output': {'required': True, 'metavar': 'FILE', 'help': 'such as bert.stablehlo'},
        '--to': {'choices': ['stablehlo', 'onnx'], 'default': 'stablehlo',
                 'help': 'the format (stablehlo)'},
        '--opset': {'type': int, 'choices': range(20, 25), 'default': 23, 'help': 'of ONNX (23)'}}),
}


def _parser() -> argparse.ArgumentParser:
    parser = Parser('python -m bert_jax.predict', __doc__)
    subparsers = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, (run, flags) in _COMMANDS.items():
        described = inspect.getdoc(run) or ''
        of_command = subparsers.add_parser(
            name, help=described.partition('\n')[0], description=described)
        for flag, settings in (_MODEL | flags).items():
            of_command.add_argument(flag, **settings)
    return parser


def main() -> None:
    """Runs the command (see the top of this file)."""
    args = _parser().parse_args()
    output, is_export = getattr(args, 'output', None), args.command == 'export'
    num_notes = itertools.count(1)

    def note(line: str) -> None:
        number = next(num_notes)
        if number <= _NOTES:
            end = '; further notes are left out' if number == _NOTES else ''
            tell(f'note: {line}{end}')

    with error_boundary(writing=output):
        sys.stdout.reconfigure(encoding='utf-8')  # type: ignore[union-attr]
        if output is not None:
            check_new_file(output, '--output')
        texts: Any = None if is_export else _texts(args)
        float32 = 'float32' if is_export and args.to == 'onnx' else None
        model = load(args.model, args.vocab_file, args.dtype or float32)
        model.need(args.command)  # before waiting for standard input
        model.note = note
        results = _COMMANDS[args.command][0](model, args, texts)
        if not is_export and args.id:
            results = _with_ids(results, texts.ids(args.id))
        num_faults = _print(results, exact=args.command == 'features')
    if num_faults:
        sys.exit(_SOME_FAILED)


def _with_ids(results: Iterator[Any], ids: Iterator[Any]) -> Iterator[Any]:
    for result in results:
        yield result if 'corpus' in result else {'id': next(ids), **result}


def _columns_of_run(args: argparse.Namespace) -> list[str]:
    """The columns that a run on an own table was trained on; [] if the model is no such run."""
    from bert_jax.weights.run_directory import run_of

    folder = run_of(as_path(args.model))
    if args.command not in ('classify', 'tag') or not (folder / 'checkpoints').exists() or (
            not (folder / 'config.json').exists()):
        return []
    fields = read_json(folder / 'config.json', 'put it back')
    if fields.get('task') not in ('classification', 'regression', 'multiple_choice', 'tagging'):
        return []
    data = fields['data']
    more = [data.get('text_pair', ''), *data.get('choices', '').split(',')]
    columns = [data['text'], *(name.strip() for name in more if name.strip())]
    tell(f'read from {args.input}: {", ".join(columns)}, as in training (--text names others)')
    return columns


def _texts(args: argparse.Namespace) -> Texts | SquadTexts:
    """The texts that the arguments name."""
    choices = [column for column in getattr(args, 'choices', '').split(',') if column]
    if choices and (args.text_pair or not args.text):
        raise InputError('--choices go with the column --text, in place of --text-pair')
    if args.text_pair and not args.text:
        raise InputError('--text-pair names the second column: name the first with --text')
    columns = [column for column in (args.text, args.text_pair, *choices) if column]
    form = format_of(args.input or '')
    if args.id and (not form or getattr(args, 'output', None)):
        raise InputError(f'--id={args.id} names a column of --input, for results in JSON lines')
    if form and not columns:
        columns = _columns_of_run(args)
    if args.command == 'answer' and form and not columns:
        from bert_jax.tasks.squad import has_rows

        if form == 'json' and not has_rows(args.input):
            args.id = args.id or 'id'
            return SquadTexts(args.input)
        columns = ['question', 'context']
    texts = Texts(args.texts, args.input, columns)
    if args.id:
        next(texts.ids(args.id), None)  # fails now if there is no such column
    return texts


def _print(results: Iterator[Any], exact: bool) -> int:
    """Prints an object per line (unless it is empty), the progress, and the first error.

    Returns:
      The number of texts without a result.

    Raises:
      InputError: no text has a result.
    """
    started = shown = time.monotonic()
    num_texts = num_faults = 0
    fault = ''
    for result in results:
        if result:
            text = json.dumps(result, ensure_ascii=False)
            if not exact:  # only the digits that float32 holds
                short = json.loads(text, parse_float=lambda x: float(f'{float(x):.7g}'))
                text = json.dumps(short, ensure_ascii=False)
            print(text)
        if 'corpus' in result:
            continue
        num_texts += 1
        if 'error' in result:
            num_faults += 1
            fault = fault or f'text {num_texts}: {result["error"]}'
        if (now := time.monotonic()) - shown > _PROGRESS:
            shown, rate = now, num_texts / (now - started)
            tell(f'{num_texts} texts, {rate:.1f} a second')
    sys.stdout.flush()
    if num_faults:
        others = f' ({num_faults} of {num_texts} have no result)' if num_texts > 1 else ''
        if num_faults == num_texts:
            raise InputError(fault + others)
        tell(fault + others)
    return num_faults


if __name__ == '__main__':
    main()
