"""Shows runs beside each other: one page that needs nothing else.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html

Curves over steps, tokens and FLOPs, speed and where the time went, results, settings that differ,
warnings; and from the run's own weights masked words, attention and nearest words of a sentence.
A run that goes on, was killed or has no checkpoint is shown as far as there is something of it, and
the page says what is missing.

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.files import as_path, write_whole
from bert_jax.runtime.outputs import check_new_file

_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'


def report(folders: Sequence[str], output: str, text: str = _TEXT) -> None:
    """Writes the page.

    Args:
      folders: run directories.
      output: a new file.
      text: the sentence of the examples.

    Raises:
      InputError: a folder is no run, the text cannot be used, or `output` not be written.
    """
    from bert_jax.tools.report_model import check_text
    from bert_jax.tools.report_page import page
    from bert_jax.tools.report_run import read_run

    check_new_file(output, '--output')
    check_text(text)
    paths = [as_path(folder) for folder in folders]
    runs = [read_run(path, name) for path, name in zip(paths, _names(folders), strict=True)]
    examples = [_examples(run, text) for run in runs]
    write_whole(output, page(runs, examples, text))
    for run in runs:
        print(f'{run.name}: {run.state}' + ''.join(f'; {line}' for line in run.missing))
    print(f'written: {output}')


def _names(folders: Sequence[str]) -> list[str]:
    """The last part of each path, or as many as tell them apart.

    Raises:
      InputError: a folder is named twice.
    """
    parts = [os.path.abspath(folder).split(os.sep) for folder in folders]
    if twice := next((f for i, f in enumerate(folders) if parts[i] in parts[:i]), None):
        raise InputError(f'{twice} is named twice: name each run once')
    for num in range(1, max(map(len, parts)) + 1):
        names = [os.sep.join(part[-num:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError(folders)


def _examples(run: Any, text: str) -> Any:
    """What the weights of a run can show; what they cannot goes to what is missing."""
    from bert_jax.predict import load
    from bert_jax.tools.report_model import heads, masked_words, neighbours
    from bert_jax.tools.report_page import Examples

    try:
        model = load(run.folder)
        model.note = run.missing.append
        model.tokenizer  # noqa: B018 - whether there is a vocabulary
    except InputError as error:
        run.missing.append(f'no masked words, attention or nearest words: {error}')
        return Examples()

    def tried(what: str, make: Callable[..., Any]) -> Any:
        try:
            return make(model, text)
        except InputError as error:
            run.missing.append(f'no {what}: {error}')
            return None

    return Examples(
        tried('masked words', masked_words), tried('attention', heads), neighbours(model, text))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m bert_jax.tools.report', description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', required=True, help='the page, a new file')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
    options = parser.parse_args(arguments)
    with error_boundary(writing=options.output):
        report(options.runs, options.output, options.text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
