"""Makes a pre-training run's vocabulary and token stores before the run, and publishes them.

    python -m bert_jax.tools.prepare --config=configs/base_pretrain.py \\
        --config.data.source='wiki/*.txt.gz' --config.data.dir=gs://BUCKET/bert_jax

It takes the config and the --config.FIELD=VALUE of the bert_jax.main command, and needs no
accelerator: all processors of this machine tokenize. The results go to config.data.dir, named after
the content of the text, where every host of the run finds them: name a bucket or a folder that all
hosts share (for a run on this machine only, any folder). The run's config still names the text,
and its first host lists it to find the store: keep it in a bucket too, or on a disk of that host;
or name the store itself, config.data.source=store:PATH with the path that this command prints.

The same command resumes what was stopped or killed, which loses the part that it was making. Where
another process is at work on the same store, or the same --share of it, it says so and waits. Where
some files of the text have changed since a store was made in the same place, only the shares that
these are in are made anew (python -m bert_jax.tools.look DIR --stores lists what is there).

Several machines that share the text and config.data.dir divide the work by its shares, the pieces
of which a store is made:

    --share=I/N    makes every N-th share, from number I on; start it for I = 0 to N-1, at the same
                   time or not, and again where one failed
    --finish       when all are made, makes the stores of them, and says which are missing

(launch/slurm.sh and gke.sh do both: run ... --tool=prepare.) Without --finish the plain command
makes what is missing, too. A vocabulary is trained by each that finds none, all the same.

Or an engine divides the work: what stands behind -- goes to Apache Beam's PipelineOptions, as in

    python -m bert_jax.tools.prepare --config=... -- --runner=DataflowRunner --project=...

(docs/large_corpora.md). Its workers count the words of a vocabulary, which is made here, and make
the stores.

Files that cannot be read are named when all others are done, all of them in one error; with
config.data.max_bad_files=N up to so many are set aside, which the store's manifest names.

It says what each store holds, what share of its tokens is [UNK], and how many documents are left
out: duplicates always, and with config.data.near_duplicates and config.data.remove_contaminated
those too; and for each file of config.data.decontaminate, how many of its texts are in the training
text (docs/large_corpora.md).

Exit status: 0 done, 2 bad flags, configuration or text, 130 after Ctrl-C.
"""

import functools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from bert_jax.completion import complete
from bert_jax.config.command_line import parse_command
from bert_jax.config.fields import pretraining_kind
from bert_jax.rows.store import documents_in_words, file_sizes, is_finished
from bert_jax.runtime.errors import InputError, counted, needing, show
from bert_jax.runtime.files import as_path
from bert_jax.runtime.process import error_boundary


def main(argv: Sequence[str]) -> None:
    """Runs the command (see the top of this file)."""
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')  # leaves an accelerator of this machine free
    argv, options = _split_off_options(argv)
    with error_boundary(stopped='stopped; the same command resumes'):
        values = _flags()
        config, _ = parse_command(argv, __doc__ or '', values)
        if pretraining_kind(config.task) != 'pretrain':
            raise InputError(f'config.task={config.task!r} reads its data at every start and has '
                             'nothing to prepare: only pre-training on text has')
        config = _completed(config)
        if options and (values.share or values.finish):
            raise InputError('an engine divides the shares and finishes the store: leave out '
                             '--share and --finish, or what stands behind --')
        if values.share:
            _make_shares(config, values)
            return
        if values.finish:
            _finish_stores(config)
        if options:
            _make_stores_with_engine(config, options)
        _make_stores(config)


# What follows imports within its functions: jax reads JAX_PLATFORMS when it is imported.


def _completed(config: Any) -> Any:
    """The checked config, with what follows from the weights that it names."""
    from bert_jax.foreign import load_weights
    from bert_jax.validation import validate

    validate(config)
    published = load_weights(config.init_checkpoint) if config.init_checkpoint else None
    return complete(config, published)


def _make_shares(config: Any, values: flags.FlagValues) -> None:
    """Makes the shares of each store that --share names."""
    from bert_jax.corpus import store_building
    from bert_jax.corpus.preparing import open_builds

    which = _slice(values.share, values.finish)
    for build in _unfinished(open_builds(config)):
        with store_building.at_work_on(build, which):
            store_building.make_shares(build, which)
    show(f'share={values.share}: done; when all are, --finish makes the stores')


def _finish_stores(config: Any) -> None:
    """Makes the stores of shares that are all there."""
    from bert_jax.corpus import store_building
    from bert_jax.corpus.preparing import open_builds

    for build in _unfinished(open_builds(config)):
        with store_building.alone_at_work(build):
            store_building.finish(build)


def _make_stores_with_engine(config: Any, options: Sequence[str]) -> None:
    """Makes the stores with Apache Beam, whose options these are."""
    from bert_jax.corpus import store_building
    from bert_jax.corpus.preparing import open_builds

    with needing('what stands behind --, an engine,', extra='beam'):
        from bert_jax.corpus import beam_shares, beam_words

        count_runs = functools.partial(beam_words.counted_runs, options=options)
        for build in _unfinished(open_builds(config, count_runs)):
            with store_building.alone_at_work(build):
                beam_shares.run(build, options)


def _make_stores(config: Any) -> None:
    """Makes what is missing of the vocabulary and the stores, and says what they hold."""
    from bert_jax.corpus.preparing import prepare

    prepared = prepare(config)
    assert prepared is not None
    for source, store in prepared.stores.items():
        path = as_path(config.data.dir) / 'stores' / store.fingerprint
        show(f'{source}: {_described(store.manifest)}: {path}')
        unknown_id = prepared.tokenizer.vocab.unk_id
        if unknown_id is not None:
            counts = store.token_counts()
            show(f'{source}: {counts[unknown_id] / max(counts.sum(), 1):.2%} of the tokens are '
                 '[UNK]')
        _show_faults(source, store.manifest)
    if not prepared.stores:
        show('all sources are records, which every host reads as they are')


def _show_faults(source: str, manifest: Mapping[str, Any]) -> None:
    """Says which files were set aside, and what the text holds of evaluation files."""
    for file, fault in manifest.get('bad_files', {}).items():
        show(f'{source}: set aside: {file}: {fault}')
    for file in manifest.get('contamination', ()):
        show(f"{source}: {file['name']}: {file['num_found']:,} of "
             f"{counted(file['num_texts'], 'text')} found, in "
             f"{counted(file['num_documents'], 'document')}")


def _split_off_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(The command's arguments, those of Beam behind `--`)."""
    arguments = list(argv)
    if '--' not in arguments:
        return arguments, []
    place = arguments.index('--')
    return arguments[:place], arguments[place + 1:]


def _flags() -> flags.FlagValues:
    """The command's own flags, which are not yet parsed."""
    result = flags.FlagValues()
    flags.DEFINE_string(
        'share', '', 'I/N: make only every N-th share, from number I on.', flag_values=result)
    flags.DEFINE_boolean(
        'finish', False, 'Make no shares, only the stores of them.', flag_values=result)
    return result


def _slice(share: str, finish: bool) -> Any:
    """The shares that --share=I/N names.

    Raises:
      InputError: it is none, or --finish is given, too.
    """
    from bert_jax.corpus.store_building import Slice

    if finish:
        raise InputError(f'--share={share} --finish: give --finish alone, when all are done')
    found = re.fullmatch(r'(\d{1,6})/(\d{1,6})', share, re.ASCII)
    if not found or int(found[1]) >= int(found[2]):
        raise InputError(f'--share={share}: give I/N, of which I is from 0 to N-1, as in '
                         '--share=0/16')
    return Slice(int(found[1]), int(found[2]))


def _unfinished(builds: Sequence[Any]) -> list[Any]:
    """The builds whose store is not finished, and so perhaps in a folder that is written."""
    return [build for build in builds if not is_finished(build.folder)]


def _described(manifest: Mapping[str, Any]) -> str:
    """The content of a token store, in words."""
    sizes = file_sizes(manifest)
    return (
        f"{counted(manifest['num_tokens'], 'token')} in {documents_in_words(manifest)}, "
        f"{counted(manifest['num_sentences'], 'sentence')} and "
        f"{counted(manifest['num_blocks'], 'block')}, {sum(sizes.values()) / 1e6:,.1f} MB in "
        f"{counted(len(sizes), 'file')}")


if __name__ == '__main__':
    main(sys.argv)
