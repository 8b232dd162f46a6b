"""Uses a model: predictions as JSON lines, one object for each text, in the order of the texts.

    python -m bert_jax.predict fill-mask --model runs/tiny_pretrain "The list is [MASK] in place."
    python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."
    python -m bert_jax.predict score --model DIR --input sentences.txt > scores.jsonl
    python -m bert_jax.predict features --model DIR --pool=mean --output vectors.npz < texts.txt
    python -m bert_jax.predict export --model DIR --output bert.stablehlo

A model is a run directory of bert_jax.main, a Hugging Face folder, or a TF1 checkpoint (its folder
or prefix). Texts come from the arguments, from --input FILE, or from standard input; in files one
text a line, UTF-8, or of a .csv, .tsv or .jsonl the columns that --text and --text-pair name.
`COMMAND --help` describes what a command reads and writes. A text that cannot be read has a result
with "error", which gives the reason.

Exit status: 0 done, 2 bad input (one line on standard error) or no result but errors, 1 anything
else.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # TF1 checkpoints are read by TensorFlow

import argparse
import inspect
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, check_new_file, open_stream
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.table import Malformed, read_rows, texts_of

if TYPE_CHECKING:
    from bert_jax.predict.api import Model

_TAB = '\t'
_NOTES = 20  # notes that are printed
_PROGRESS = 10.0  # seconds between two lines of progress
_TABLE = re.compile(r'.*\.(csv|tsv|jsonl?)(\.gz)?', re.IGNORECASE)  # names of files with columns

Parts = tuple[str, ...] | InputError  # texts that go together, or why there are none


class Texts:
    """The texts of a command, read one by one as they are needed.

    A line or a row of a table is never skipped: one that cannot be read is an error in its place.
    A table is checked as a whole before anything is computed.
    """

    def __init__(
        self, arguments: Sequence[str], file: str | None, columns: Sequence[str] = (), *,
        whole_objects: bool = False,
    ):
        """Checks where the texts come from.

        Args:
          arguments: texts; empty: they come from the file.
          file: path; None: standard input, where there are no arguments.
          columns: of a .csv, .tsv, .json or .jsonl file: of the texts, and of second texts if there
            are.
          whole_objects: whether lines of JSON may come without `columns`: questions with contexts.

        Raises:
          InputError: both are given, the file cannot be read, or it has columns and none is named
            (its header would be read as a text).
        """
        if arguments and file is not None:
            raise InputError(f'give texts or --input={file}, not both')
        table = _TABLE.fullmatch(file or '')
        if columns and not table:
            raise InputError(
                f'--text={columns[0]} names a column: --input must be a file that has some, ending '
                'in .csv, .tsv, .json or .jsonl, plain or .gz'
            )
        if table and not columns and not (whole_objects and table[1].lower() == 'jsonl'):
            raise InputError(
                f'--input={file} has columns: name the one with the texts, --text=COLUMN (a file '
                'with a text in each line is called .txt)'
            )
        for text in arguments:
            if any('\ud800' <= character <= '\udfff' for character in text):
                raise InputError(f'{text!r:.60} is not UTF-8')
        self._arguments, self._file, self._columns = arguments, file, columns
        self._name = file or 'standard input'
        if columns and not sum(1 for _ in read_rows(self._name, columns)):
            raise InputError(f'{file} holds no rows: copy it again')
        if file is not None and not as_path(file).exists():
            raise InputError(f'--input={file}: No such file or directory')
        if not arguments and file is None and sys.stdin is None:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        if not arguments and file is None and sys.stdin.isatty():
            print('texts from standard input, one a line; end with Ctrl-D', file=sys.stderr)

    def single(self) -> Iterator[str | InputError]:
        """Each argument, line or row is a text."""
        for parts in self._read():
            yield parts if isinstance(parts, InputError) else parts[0]

    def parts(self, *separators: str) -> Iterator[Parts]:
        """Each argument or line is one text, or several with a TAB (or a separator) between."""
        for parts in self._read():
            if isinstance(parts, InputError) or self._columns:
                yield parts
                continue
            (text,) = parts
            for separator in separators:
                text = text.replace(separator, _TAB)
            yield tuple(text.split(_TAB))

    def pairs(self) -> Iterator[Parts]:
        """Two arguments, or a line with a TAB between two texts, or two columns."""
        if self._arguments:
            texts = self._arguments
            if len(texts) % 2:
                raise InputError(
                    f'{len(texts)} texts are no pairs: two arguments are one pair '
                    f'({texts[-1][:60]!r} has no second)')
            yield from zip(texts[::2], texts[1::2], strict=True)
            return
        if len(self._columns) == 1:
            raise InputError('two texts are wanted: name the second column with --text-pair')
        for number, parts in enumerate(self.parts(), 1):
            if isinstance(parts, InputError) or len(parts) == 2:
                yield parts
            else:
                yield InputError(
                    f'{self._name}, line {number} has {len(parts) - 1} TABs: one expected, between '
                    'two texts'
                )

    def choices(self) -> Iterator[Parts]:
        """All arguments together, a line with TABs, or columns, are a beginning and its ends."""
        if self._arguments:
            yield tuple(self._arguments)
        elif self._columns:
            yield from self._rows(lists=True)
        else:
            yield from self.parts()

    def questions(self) -> Iterator[Parts]:
        """(question, context): two arguments or columns, or a line with a TAB or of JSON."""
        if self._arguments or self._columns:
            yield from self.pairs()
            return
        for number, line in enumerate(self.single(), 1):
            if isinstance(line, InputError):
                yield line
                continue
            try:
                if line.lstrip().startswith('{'):
                    record = json.loads(line)
                    question, context = record['question'], record['context']
                else:
                    question, context = line.split(_TAB)
                if not isinstance(question, str) or not isinstance(context, str):
                    raise TypeError
                yield tuple(texts_of([question, context]))
            except Malformed as error:
                yield InputError(f'{self._name}, line {number}: {error}')
            except (ValueError, KeyError, TypeError, RecursionError):
                yield InputError(
                    f'{self._name}, line {number} is neither {{"question": ..., "context": ...}} '
                    f'nor a question, a TAB and a context ({line[:60]!r})'
                )

    def _read(self) -> Iterator[Parts]:
        """Each argument or line as one text; of a table the cells of the named columns."""
        if self._arguments:
            yield from ((text,) for text in self._arguments)
        elif self._columns:
            yield from self._rows()
        elif self._file is None:
            yield from self._lines(sys.stdin.buffer)
        else:
            with open_stream(self._file) as lines:
                yield from self._lines(lines)

    def _rows(self, lists: bool = False) -> Iterator[Parts]:
        """The cells of each row; with `lists`, a list of texts is as many cells."""
        for row in read_rows(self._name, self._columns):
            try:
                if row.fault:
                    raise Malformed(row.fault)
                cells = [text for cell in row.cells
                         for text in (cell if lists and isinstance(cell, list) else [cell])]
                yield tuple(texts_of(cells))
            except Malformed as error:
                yield InputError(f'{self._name}, line {row.line}: {error}')

    def _lines(self, lines: IO[bytes]) -> Iterator[Parts]:
        number = 0
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                yield InputError(
                    f'{self._name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x}): '
                    'convert it'
                )
                continue
            yield (text.removeprefix('\ufeff' if number == 1 else '').rstrip('\r\n'),)
        if not number:
            raise InputError(f'{self._name} has no texts: write one a line')


class _Command(NamedTuple):
    """A command.

    Attributes:
      run: from the model, the arguments and the texts to the objects to print; its docstring is
        the help.
      flags: what `add_argument` takes, by the flag's name in Python.
    """

    run: Callable[[Model, argparse.Namespace, Texts], Iterator[Any]]
    flags: dict[str, dict[str, Any]]


_COMMANDS: dict[str, _Command] = {}


def _command(**flags: dict[str, Any]) -> Callable[[Any], Any]:
    """Registers a function as the command of its name."""
    def register(run: Any) -> Any:
        _COMMANDS[_dashed(run.__name__)] = _Command(run, flags)
        return run

    return register


def _dashed(name: str) -> str:
    return name.strip('_').replace('_', '-')


_MODEL: dict[str, dict[str, Any]] = {
    'model': {'required': True, 'metavar': 'DIR',
              'help': 'run directory, Hugging Face folder or TF1 checkpoint'},
    'dtype': {'choices': ['float32', 'bfloat16'],
              'help': 'of the computation; default: float32 on CPUs, else bfloat16'},
    'vocab_file': {'metavar': 'FILE',
                   'help': 'the vocabulary, where it does not lie beside the weights'},
}
_TEXTS: dict[str, dict[str, Any]] = {
    'input': {'metavar': 'FILE', 'help': 'of texts, one a line; or a .csv, .tsv or .jsonl'},
    'text': {'metavar': 'COLUMN', 'help': 'of such a file that holds the texts (questions)'},
    'text_pair': {'metavar': 'COLUMN', 'help': 'that holds the second texts (contexts)'},
}
_WINDOWS = {
    'choices': ['first', 'mean', 'max'], 'help': 'a text that is too long is cut, or read in '
    'windows whose probabilities or vectors are combined (as its run had it, else first)',
}


@_command(top_k={'type': int, 'default': 5, 'metavar': 'N', 'help': 'words for each [MASK] (5)'})
def _fill_mask(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The likeliest words for each [MASK].

        python -m bert_jax.predict fill-mask --model DIR "Paris is the [MASK] of France."

    Reads texts with one [MASK] or more.
    Writes {"text", "predictions": [{"token", "id", "probability", "sequence"}, ...]};
    with several [MASK] in a text, "predictions" is a list of such lists. Of a text that is
    too long for the model, each [MASK] sees the tokens around it.
    """
    return model.iter_fill_mask(texts.single(), args.top_k)


@_command()
def _next_sentence(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The probability that the second text follows the first.

        python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."

    Reads two texts: two arguments, or a line with a TAB between them.
    Writes {"first", "second", "probability"}.
    """
    return model.iter_next_sentence(texts.pairs())


@_command(
    choices={'metavar': 'COLUMN,COLUMN,...', 'default': '',
             'help': 'that hold the choices, or the one that holds a list of them'},
    pairs={'action': 'store_true', 'help': 'arguments are pairs, two and two'}, windows=_WINDOWS,
)
def _classify(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """Labels of texts or pairs, values, or which end fits.

        python -m bert_jax.predict classify --model DIR "A fine film." "A dull one."

    Reads texts, or pairs: a TAB stands between two texts, and with --pairs arguments are
    taken in twos. A regression model gives values. A multiple-choice model reads a
    beginning and its possible ends: one argument each, or a line with TABs between them.
    Writes {"text" or "first" and "second", "label", "probability", "probabilities"};
    several labels a text: "labels", those above 0.5, and "probabilities"; regression:
    "value"; multiple choice: {"text", "choices", "choice", "probability",
    "probabilities"}, where "choice" counts from 0.
    """
    if model.weights.head == 'multiple_choice':
        return model.iter_classify(texts.choices(), args.windows)
    return model.iter_classify(texts.pairs() if args.pairs else texts.parts(), args.windows)


@_command(
    max_answer_length={'type': int, 'default': 30, 'metavar': 'N', 'help': 'in tokens (30)'},
    null_threshold={
        'type': float, 'metavar': 'X', 'help': 'answer "" where its score is above all others\' by '
        'more than this (as a SQuAD 2.0 run determined it, else never)'},
)
def _answer(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The span of a context that answers a question.

        python -m bert_jax.predict answer --model DIR "Who wrote it?" "It was written by Anna Berg."

    Reads question and context: two arguments, a line with a TAB between them, or a line
    {"question": ..., "context": ...}.
    Writes {"question", "answer", "start", "end", "score", "probability"}; the answer is
    context[start:end]. Long contexts are read in overlapping windows, as the run was
    evaluated.
    """
    return model.iter_answer(texts.questions(), args.max_answer_length, args.null_threshold)


@_command()
def _tag(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """A label for each word, and entities.

        python -m bert_jax.predict tag --model DIR "Anna Berg lives in Oslo ."

    Reads texts whose words stand between white space.
    Writes {"text", "tags": [{"word", "label", "probability", "start", "end"}, ...],
    "entities": [{"text", "label", "start", "end", "probability"}, ...]}, start and end in
    characters. Long texts are read in overlapping windows; no word is left out.
    """
    return model.iter_tag(texts.single())


@_command(
    layers={'default': '-1', 'metavar': 'N,N,...', 'help': 'counted from the top, written as '
            '--layers=-1,-2,-3,-4; one below the first are the embeddings (-1)'},
    pool={'choices': ['mean', 'cls', 'max'], 'help': 'one vector a text: the mean or maximum over '
          'all its tokens, [CLS] and [SEP] among them, or the hidden state of [CLS]'},
    normalize={'action': 'store_true', 'default': None, 'help': 'brings vectors to length 1'},
    windows=_WINDOWS, output={'metavar': 'FILE.npz', 'help': 'see above'},
)
def _features(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """Hidden states of tokens, or one vector a text.

        python -m bert_jax.predict features --model DIR --layers=-1,-2 --input texts.txt

    Reads texts or pairs (a TAB or " ||| " between two texts). What is longer than the
    model takes is cut (with --pool see --windows).
    Writes what extract_features.py of google-research/bert does: {"linex_index",
    "features": [{"token", "layers": [{"index", "values"}]}]}, six decimals, [CLS] and
    [SEP] included; with --pool {"linex_index", "vector"}.
    With --output FILE.npz it writes float32 arrays instead: `values` [tokens of all texts,
    layers, hidden], `tokens` (their strings), `offsets` [texts + 1] (text i is
    values[offsets[i]:offsets[i + 1]]) and `layers`; with --pool `vectors` [texts, hidden].
    """
    from bert_jax.predict.features import lines

    try:
        layers = [int(number) for number in args.layers.split(',')]
    except ValueError:
        raise InputError(f'--layers={args.layers} must be numbers such as -1,-2,-3,-4') from None
    return lines(
        model, texts.parts(' ||| '), layers, args.pool, args.output, args.normalize, args.windows)


@_command()
def _score(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """Pseudo-perplexity.

        python -m bert_jax.predict score --model DIR --input sentences.txt

    Reads texts. Each token is masked in turn (Salazar et al., 2020).
    Writes {"text", "num_tokens", "log_probability", "pseudo_perplexity"}, and after the
    last text one line more: {"corpus": {"num_texts", "num_tokens", "log_probability",
    "pseudo_perplexity"}}. pseudo_perplexity = exp(-log_probability / num_tokens).
    """
    from bert_jax.predict.commands import pseudo_perplexity

    num_texts, num_tokens, log_probability = 0, 0, 0.0
    for score in model.iter_score(texts.single()):
        if 'error' not in score:
            num_texts += 1
            num_tokens += score['num_tokens']
            log_probability += score['log_probability']
        yield score
    yield {'corpus': {
        'num_texts': num_texts, 'num_tokens': num_tokens, 'log_probability': log_probability,
        'pseudo_perplexity': pseudo_perplexity(log_probability, num_tokens),
    }}


@_command(
    output={'required': True, 'metavar': 'FILE', 'help': 'such as bert.stablehlo'},
    to={'choices': ['stablehlo', 'saved_model', 'onnx'], 'default': 'stablehlo',
        'help': 'the format (stablehlo)'},
)
def _export(model: Model, args: argparse.Namespace, texts: None) -> Iterator[Any]:
    """The computation as a file that other programs run.

        python -m bert_jax.predict export --model DIR --output bert.stablehlo

    Writes what the model computes, of any number of rows and tokens, runs what it has
    written on a few rows and compares with the model's numbers before it is kept.
    --to saved_model: a folder for TensorFlow, signature serving_default.
    --to onnx: a file for ONNX Runtime; needs jax2onnx and onnxruntime.
    --to stablehlo: FILE and, beside it, the parameters as .npz. They run where only jax,
    numpy and flatbuffers are installed, on CPU, CUDA and TPU:

        from jax import export; import jax, numpy as np
        bert = export.deserialize(bytearray(open("bert.stablehlo", "rb").read()))
        params = dict(np.load("bert.npz"))
        jax.jit(bert.call)(params, input_ids, input_mask, segment_ids)

    All inputs are int32 [rows, tokens]. A model with a masked-LM head takes
    masked_lm_positions [rows, positions] too. Outputs by name: sequence_output,
    pooled_output and the logits of the head.
    Prints {"output", "inputs", "outputs", "largest_difference", ...}.
    """
    from bert_jax.predict.export import export_model

    yield export_model(model, as_path(args.output), args.to)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f'{message} (see {self.prog} --help)')


def _fail(message: str) -> NoReturn:
    print(f'error: {" ".join(message.split())}', file=sys.stderr, flush=True)
    sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    form: Any = {'formatter_class': argparse.RawDescriptionHelpFormatter}
    parser = _Parser(prog='python -m bert_jax.predict', description=__doc__, **form)
    subparsers = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    for name, command in _COMMANDS.items():
        described = inspect.getdoc(command.run) or ''
        of_command = subparsers.add_parser(
            name, help=described.partition('\n')[0], description=described, **form)
        flags = _MODEL | command.flags
        if name != 'export':
            of_command.add_argument('texts', nargs='*', metavar='TEXT')
            flags = _MODEL | _TEXTS | command.flags
        for flag, settings in flags.items():
            of_command.add_argument(f'--{_dashed(flag)}', **settings)
    return parser


def _texts(args: argparse.Namespace) -> Texts:
    """The texts that the arguments name."""
    if args.text_pair and not args.text:
        raise InputError('--text-pair names the second column: name the first with --text')
    choices = [column for column in getattr(args, 'choices', '').split(',') if column]
    if choices and (args.text_pair or not args.text):
        raise InputError('--choices go with the column --text, in place of --text-pair')
    columns = [column for column in (args.text, args.text_pair, *choices) if column]
    return Texts(args.texts, args.input, columns, whole_objects=args.command == 'answer')


def _notes() -> Callable[[str], None]:
    """A function that prints notes on standard error, the first `_NOTES` of them."""
    numbers = itertools.count(1)

    def note(line: str) -> None:
        number = next(numbers)
        if number <= _NOTES:
            end = '; further notes are left out' if number == _NOTES else ''
            print(f'note: {line}{end}', file=sys.stderr, flush=True)

    return note


def main() -> None:
    args = _parser().parse_args()
    output = getattr(args, 'output', None)
    with error_boundary(writing=output):
        sys.stdout.reconfigure(encoding='utf-8')  # type: ignore[union-attr]
        if output is not None:
            check_new_file(output, '--output')
        is_export = args.command == 'export'
        texts: Any = None if is_export else _texts(args)
        from bert_jax.predict import load

        float32 = 'float32' if is_export and args.to != 'stablehlo' else None
        model = load(args.model, args.vocab_file, args.dtype or float32)
        model.need(args.command)  # before standard input is waited for
        model.note = _notes()
        _print(_COMMANDS[args.command].run(model, args, texts), exact=args.command == 'features')


def _print(results: Iterator[Any], exact: bool) -> None:
    """Prints an object a line (None: it is in a file), the progress, and the first error.

    Raises:
      SystemExit: there are errors only.
    """
    started = shown = time.monotonic()
    num_texts = num_faults = 0
    fault = ''
    for result in results:
        if result is not None:
            print(json.dumps(result if exact else _short(result), ensure_ascii=False))
            if 'corpus' in result:
                continue
        num_texts += 1
        if result is not None and 'error' in result:
            num_faults += 1
            fault = fault or f'text {num_texts}: {result["error"]}'
        if (now := time.monotonic()) - shown > _PROGRESS:
            shown, rate = now, num_texts / (now - started)
            print(f'{num_texts} texts, {rate:.1f} a second', file=sys.stderr, flush=True)
    sys.stdout.flush()
    if num_faults:
        others = f' ({num_faults} of {num_texts} have no result)' if num_texts > 1 else ''
        if num_faults == num_texts:
            _fail(fault + others)
        print(fault + others, file=sys.stderr)


def _short(x: Any) -> Any:
    """Numbers of float32 with the digits that mean something."""
    if isinstance(x, float):
        return float(f'{x:.7g}')
    if isinstance(x, dict):
        return {key: _short(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_short(value) for value in x]
    return x


if __name__ == '__main__':
    main()
