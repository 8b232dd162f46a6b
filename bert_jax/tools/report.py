"""Shows runs beside each other on one HTML page that needs no other file.

    python -m bert_jax.tools.report RUN [RUN ...] --output=report.html

The page has curves over steps, tokens and FLOPs, speed and where the time went, results, settings
that differ and warnings; and from each run's weights masked words, attention and nearest words of a
sentence. A run that is going on, was killed or has no checkpoint is shown as far as it got, and the
page lists what is missing.

Exit status: 0 done, 2 bad input.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import sys
from collections.abc import Sequence

from bert_jax.config.command_line import Parser
from bert_jax.runtime.process import error_boundary

_TEXT = 'The old town lies on the river, and the king lived in the castle for many years.'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser('bert_jax.tools.report', __doc__)
    parser.add_argument('runs', metavar='RUN', nargs='+', help='run directories')
    parser.add_argument('--output', required=True, help='the page, a new file')
    parser.add_argument('--text', default=_TEXT, help='the sentence of the examples')
    with error_boundary():
        options = parser.parse_args(arguments)
    with error_boundary(writing=options.output):
        from bert_jax.tools.report_page import report  # not above: `--help` does not wait for jax

        report(options.runs, options.output, options.text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
