"""Uses a model: predictions as JSON lines, one object for each text, in the order of the texts.

    python -m bert_jax.predict fill-mask --model runs/tiny_pretrain "The list is [MASK] in place."
    python -m bert_jax.predict next-sentence --model DIR "He was tired." "So he went to bed."
    python -m bert_jax.predict score --model DIR --input sentences.txt > scores.jsonl
    python -m bert_jax.predict features --model DIR --pool=mean --output vectors.npz < texts.txt
    python -m bert_jax.predict export --model DIR --output bert.stablehlo

A model is a run directory of bert_jax.main, a Hugging Face folder, or a TF1 checkpoint (its folder
or prefix). Texts come from the arguments, from --input FILE, or from standard input; in files one
text a line, UTF-8, or of a .csv, .tsv or .jsonl the columns that --text and --text-pair name.
`COMMAND --help` tells what a command reads and writes. A text that nothing can be made of has a
result with "error", which says why.

Exit status: 0 done, 2 bad input (one line on standard error) or no result but errors, 1 anything
else.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')  # TF1 checkpoints are read by TensorFlow

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NoReturn

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, check_new_file, open_stream
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.table import Malformed, read_rows, texts_of

_TAB = '\t'
_NOTES = 20  # that are shown
_TABLE = re.compile(r'.*\.(csv|tsv|jsonl?)(\.gz)?', re.IGNORECASE)  # names of files with columns

Parts = tuple[str, ...] | InputError  # texts that go together, or why there are none


class Texts:
    """The texts of a run, read as they are wanted.

    A line or a row of a table is never skipped: what cannot be read is an error in its place. A
    table is checked as a whole before anything is computed.
    """

    def __init__(
        self, arguments: Sequence[str], file: str | None, columns: Sequence[str] = (), *,
        whole_objects: bool = False,
    ):
        """Opens what the texts come from.

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
        self._arguments, self._file, self._columns = list(arguments), file, list(columns)
        self._name = file or 'standard input'
        self._total = len(arguments)  # 0: not known
        if columns:
            self._total = sum(1 for _ in read_rows(self._name, self._columns))
            if not self._total:
                raise InputError(f'{file} holds no rows: copy it again')
        elif file is not None:
            try:
                if as_path(file).is_file() or not as_path(file).exists():  # a pipe is read once
                    with open_stream(file) as lines:
                        self._total = sum(1 for _ in lines)
            except OSError as error:
                raise InputError(f'--input={file}: {error.strerror or error}') from error
        elif not arguments and sys.stdin is None:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        elif not arguments and sys.stdin.isatty():
            print('texts from standard input, one a line; end with Ctrl-D', file=sys.stderr)
        self._num_done = self._num_notes = 0
        self._terminal = sys.stderr.isatty()
        self.start()

    def start(self) -> None:
        """Starts the clock of the progress that is shown."""
        self._started = self._shown = time.monotonic()

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

    def note(self, line: str) -> None:
        """Shows a remark on standard error; after some of them it is silent."""
        self._num_notes += 1
        if self._num_notes > _NOTES:
            return
        if self._num_notes == _NOTES:
            line += '; further notes are left out'
        print(('\r\033[K' if self._terminal else '') + f'note: {line}', file=sys.stderr, flush=True)

    def done(self) -> None:
        """Counts a text, and shows the progress: often on a terminal, else seldom."""
        self._num_done += 1
        now = time.monotonic()
        if now - self._shown < (0.5 if self._terminal else 10):
            return
        self._shown = now
        sys.stdout.flush()
        rate = self._num_done / (now - self._started)
        line = f'{self._num_done} texts, {rate:.1f} a second'
        if self._total:
            left = max(self._total - self._num_done, 0) / rate
            line += f', {left // 60:.0f} min {left % 60:.0f} s left'
        print(f'\r{line}\033[K' if self._terminal else line, file=sys.stderr, flush=True,
              end='' if self._terminal else '\n')

    def end(self) -> None:
        """Clears the line of progress."""
        if self._terminal:
            print('\r\033[K', file=sys.stderr, end='', flush=True)


if TYPE_CHECKING:
    from bert_jax.predict.api import Model

_TWO = 'two texts: two arguments, or a line with a TAB between them'
# Command -> (what it gives, an example, what it reads and writes).
_COMMANDS = {
    'fill-mask': (
        'the likeliest words for each [MASK]',
        '--top-k=3 "Paris is the [MASK] of France."',
        'Reads texts with one [MASK] or more.\n'
        'Writes {"text", "predictions": [{"token", "id", "probability", "sequence"}, ...]};\n'
        'with several [MASK] in a text, "predictions" is a list of such lists. Of a text that is\n'
        'too long for the model, each [MASK] sees the tokens around it.',
    ),
    'next-sentence': (
        'how likely the second text follows the first',
        '"He was tired." "So he went to bed."',
        f'Reads {_TWO}.\n'
        'Writes {"first", "second", "probability"}.',
    ),
    'classify': (
        'labels of texts or pairs, values, or which end fits',
        '"A fine film." "A dull one."',
        'Reads texts, or pairs: a TAB stands between two texts, and with --pairs arguments are\n'
        'taken in twos. A regression model gives values. A multiple-choice model wants a\n'
        'beginning and its possible ends: one argument each, or a line with TABs between them.\n'
        'Writes {"text" or "first" and "second", "label", "probability", "probabilities"};\n'
        'several labels a text: "labels", those above 0.5, and "probabilities"; regression:\n'
        '"value"; multiple choice: {"text", "choices", "choice", "probability",\n'
        '"probabilities"}, where "choice" counts from 0.',
    ),
    'answer': (
        'the span of a context that answers a question',
        '"Who wrote it?" "The play was written by Anna Berg."',
        'Reads question and context: two arguments, a line with a TAB between them, or a line\n'
        '{"question": ..., "context": ...}.\n'
        'Writes {"question", "answer", "start", "end", "score", "probability"}; the answer is\n'
        'context[start:end]. Long contexts are read in overlapping windows, as the run was\n'
        'evaluated.',
    ),
    'tag': (
        'a label for each word, and entities',
        '"Anna Berg lives in Oslo ."',
        'Reads texts whose words stand between white space.\n'
        'Writes {"text", "tags": [{"word", "label", "probability", "start", "end"}, ...],\n'
        '"entities": [{"text", "label", "start", "end", "probability"}, ...]}, start and end in\n'
        'characters. Long texts are read in overlapping windows; no word is left out.',
    ),
    'features': (
        'hidden states of tokens, or one vector a text',
        '--layers=-1,-2,-3,-4 --input texts.txt > features.jsonl',
        'Reads texts or pairs (a TAB or " ||| " between two texts). What is longer than the\n'
        'model takes is cut (with --pool see --windows).\n'
        'Writes what extract_features.py of google-research/bert does: {"linex_index",\n'
        '"features": [{"token", "layers": [{"index", "values"}]}]}, six decimals, [CLS] and\n'
        '[SEP] included; with --pool {"linex_index", "vector"}.\n'
        'With --output FILE.npz it writes float32 arrays instead: `values` [tokens of all texts,\n'
        'layers, hidden], `tokens` (their strings), `offsets` [texts + 1] (text i is\n'
        'values[offsets[i]:offsets[i + 1]]) and `layers`; with --pool `vectors` [texts, hidden].',
    ),
    'score': (
        'pseudo-perplexity',
        '--input sentences.txt',
        'Reads texts. Each token is masked in turn (Salazar et al., 2020).\n'
        'Writes {"text", "num_tokens", "log_probability", "pseudo_perplexity"}, and after the\n'
        'last text one line more: {"corpus": {"num_texts", "num_tokens", "log_probability",\n'
        '"pseudo_perplexity"}}. pseudo_perplexity = exp(-log_probability / num_tokens).',
    ),
    'export': (
        'the computation as a file that other programs run',
        '--output bert.stablehlo',
        'Writes what the model computes, of any number of rows and tokens, runs what it has\n'
        'written on a few rows and compares with its own numbers before it is kept.\n'
        '--to saved_model: a folder for TensorFlow, signature serving_default.\n'
        '--to onnx: a file for ONNX Runtime; needs jax2onnx and onnxruntime.\n'
        '--to stablehlo: FILE and, beside it, the parameters as .npz. They run where only jax,\n'
        'numpy and flatbuffers are installed, on CPU, CUDA and TPU:\n'
        '\n'
        '    from jax import export; import jax, numpy as np\n'
        '    bert = export.deserialize(bytearray(open("bert.stablehlo", "rb").read()))\n'
        '    params = dict(np.load("bert.npz"))\n'
        '    jax.jit(bert.call)(params, input_ids, input_mask, segment_ids)\n'
        '\n'
        'All inputs are int32 [rows, tokens]. A model with a masked-LM head takes\n'
        'masked_lm_positions [rows, positions] too. Outputs by name: sequence_output,\n'
        'pooled_output and the logits of the head.\n'
        'Prints {"output", "inputs", "outputs", "largest_difference", ...}.',
    ),
}


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
    commands = {}
    for name, (short, example, long) in _COMMANDS.items():
        command = subparsers.add_parser(
            name, help=short, **form,
            description=f'{short[0].upper()}{short[1:]}.\n\n'
                        f'    python -m bert_jax.predict {name} --model DIR {example}\n\n{long}')
        command.add_argument('--model', required=True, metavar='DIR',
                             help='run directory, Hugging Face folder or TF1 checkpoint')
        command.add_argument('--dtype', choices=['float32', 'bfloat16'],
                             help='of the computation; default: float32 on CPUs, else bfloat16')
        command.add_argument('--vocab-file', metavar='FILE',
                             help='the vocabulary, where it does not lie beside the weights')
        if name != 'export':
            command.add_argument('texts', nargs='*', metavar='TEXT')
            command.add_argument(
                '--input', metavar='FILE', help='of texts, one a line; or a .csv, .tsv or .jsonl')
            command.add_argument(
                '--text', metavar='COLUMN', help='of such a file that holds the texts (questions)')
            if name == 'classify':
                command.add_argument(
                    '--choices', metavar='COLUMN,COLUMN,...', help='that hold the choices, or the '
                    'one that holds a list of them')
            command.add_argument(
                '--text-pair', metavar='COLUMN', help='that holds the second texts (contexts)')
        commands[name] = command
    commands['fill-mask'].add_argument(
        '--top-k', type=int, default=5, metavar='N', help='words for each [MASK] (5)')
    commands['classify'].add_argument(
        '--pairs', action='store_true', help='arguments are pairs, two and two')
    for name in ('classify', 'features'):
        commands[name].add_argument(
            '--windows', choices=['first', 'mean', 'max'], help='a text that is too long is cut, '
            'or read in windows whose probabilities or vectors are combined (as its run had it, '
            'else first)')
    commands['answer'].add_argument(
        '--max-answer-length', type=int, default=30, metavar='N', help='in tokens (30)')
    commands['answer'].add_argument(
        '--null-threshold', type=float, metavar='X', help='answer "" where its score is above all '
        "others' by more than this (what a SQuAD 2.0 run found, else never)")
    commands['features'].add_argument(
        '--layers', default='-1', metavar='N,N,...', help='counted from the top, written as '
        '--layers=-1,-2,-3,-4; one below the first are the embeddings (-1)')
    commands['features'].add_argument(
        '--pool', choices=['mean', 'cls', 'max'], help='one vector a text: the mean or maximum '
        'over all its tokens, [CLS] and [SEP] among them, or the hidden state of [CLS]')
    commands['features'].add_argument(
        '--normalize', action='store_true', default=None, help='brings vectors to length 1')
    commands['features'].add_argument('--output', metavar='FILE.npz', help='see above')
    commands['export'].add_argument(
        '--output', required=True, metavar='FILE', help='such as bert.stablehlo')
    commands['export'].add_argument(
        '--to', choices=['stablehlo', 'saved_model', 'onnx'], default='stablehlo',
        help='the format (stablehlo)')
    return parser


def _results(model: Model, args: argparse.Namespace, texts: Texts) -> Iterator[Any]:
    """The objects to print, one a text."""
    model.need(args.command)  # before standard input is waited for
    match args.command:
        case 'fill-mask':
            return model.iter_fill_mask(texts.single(), args.top_k)
        case 'score':
            return _with_corpus(model.iter_score(texts.single()))
        case 'tag':
            return model.iter_tag(texts.single())
        case 'next-sentence':
            return model.iter_next_sentence(texts.pairs())
        case 'classify':
            if model.weights.head == 'multiple_choice':
                return model.iter_classify(texts.choices(), args.windows)
            return model.iter_classify(
                texts.pairs() if args.pairs else texts.parts(), args.windows)
        case 'answer':
            return model.iter_answer(
                texts.questions(), args.max_answer_length, args.null_threshold)
        case _:
            from bert_jax.predict.features import lines

            return lines(
                model, texts.parts(' ||| '), _layers(args.layers), args.pool, args.output,
                args.normalize, args.windows,
            )


def _layers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(',')]
    except ValueError:
        raise InputError(f'--layers={text} must be numbers such as -1,-2,-3,-4') from None


def _with_corpus(scores: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    from bert_jax.predict.commands import pseudo_perplexity

    num_texts, num_tokens, log_probability = 0, 0, 0.0
    for score in scores:
        if 'error' in score:
            yield score
            continue
        num_texts += 1
        num_tokens += score['num_tokens']
        log_probability += score['log_probability']
        yield score
    yield {'corpus': {
        'num_texts': num_texts, 'num_tokens': num_tokens, 'log_probability': log_probability,
        'pseudo_perplexity': pseudo_perplexity(log_probability, num_tokens),
    }}


def _check(args: argparse.Namespace, output: str | None) -> None:
    """Refuses before the work what could not be read or written after it."""
    sys.stdout.reconfigure(encoding='utf-8')  # type: ignore[union-attr]
    threshold = getattr(args, 'null_threshold', None)
    if threshold is not None and math.isnan(threshold):
        raise InputError(f'--null-threshold={threshold} must be a number')
    if output is None:
        return
    if args.command == 'features' and not output.endswith('.npz'):
        raise InputError(f'--output={output} must end in .npz')
    check_new_file(output, '--output')
    if args.command == 'export':
        params_file = as_path(output).with_suffix('.npz')
        if params_file == as_path(output):
            raise InputError(
                f'--output={output} is what the parameters go to: end it in .stablehlo')
        check_new_file(params_file, '--output, for its parameters')


def main() -> None:
    args = _parser().parse_args()
    output = getattr(args, 'output', None)
    with error_boundary(writing=output):
        _check(args, output)
        from bert_jax.predict import load

        if args.command == 'export':
            from bert_jax.predict.export import export_model

            dtype = args.dtype or ('float32' if args.to != 'stablehlo' else None)
            model = load(args.model, args.vocab_file, dtype)
            print(json.dumps(export_model(model, as_path(args.output), args.to)))
            return
        if args.text_pair and not args.text:
            raise InputError('--text-pair names the second column: name the first with --text')
        choices = (getattr(args, 'choices', '') or '').split(',')
        columns = [x for x in (args.text, args.text_pair, *choices) if x]
        if any(choices) and (args.text_pair or not args.text):
            raise InputError('--choices go with the column --text, in place of --text-pair')
        texts = Texts(
            args.texts, args.input, columns, whole_objects=args.command == 'answer')
        model = load(args.model, args.vocab_file, args.dtype)
        model.note = texts.note
        texts.start()
        num_texts = 0
        faults: list[tuple[int, str]] = []
        for result in _results(model, args, texts):
            if result is not None:  # else it is in a file
                exact = args.command == 'features'
                print(json.dumps(result if exact else _short(result), ensure_ascii=False))
                if 'corpus' in result:
                    continue
            num_texts += 1
            if result is not None and 'error' in result:
                faults.append((num_texts, result['error']))
            texts.done()
        texts.end()
        sys.stdout.flush()
        if faults:
            number, reason = faults[0]
            others = f' ({len(faults)} of {num_texts} have no result)' if num_texts > 1 else ''
            line = f'text {number}: {reason}{others}'
            if len(faults) == num_texts:
                _fail(line)
            print(line, file=sys.stderr)


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
