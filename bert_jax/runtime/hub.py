"""Models and data sets of the Hugging Face hub, by name.

Cache, token and offline switch are those of `huggingface_hub` (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

import contextlib
import dataclasses
import difflib
import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, first_line, needing, tell
from bert_jax.runtime.files import check_ends
from bert_jax.runtime.pace import Pace

_MODEL_FILES = ['*.json', '*.safetensors', '*.txt', '*.model']  # no pickle
_FLAX_FILE = 'flax_model.msgpack'  # only where the model has no .safetensors
_OTHER_WEIGHTS = re.compile(r'model[^/]*\.safetensors')
_REPORT_SECONDS = 20.0
# Name, revision and path of a data set. Revisions with slashes are only those under which the hub
# keeps its own Parquet copies.
DATASET = re.compile(r'hf:datasets/([^/@]+/[^/@]+)(?:@(refs/convert/\w+|[^/]+))?/?(.*)')
_OFFLINE = ('HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE')  # variables that huggingface_hub reads
_LOG_IN = 'hf auth login, or HF_TOKEN'


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Repository:
    """A model or data set on the hub.

    Attributes:
      named: what the user wrote, for messages.
      name: ORG/NAME.
      kind: model | dataset.
      revision: a branch, a tag or a commit; None: the default branch.
    """

    named: str
    name: str
    kind: str = 'model'
    revision: str | None = None


def model_folder(named: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Downloads a model `hf:ORG/NAME[@REVISION]` into the hub's cache and returns its folder.

    Of `hf:ORG/NAME/FOLDER[@REVISION]`, only a folder of the repository, such as that of an adapter.
    Any other name is returned as it is.

    Raises:
      InputError: the name is empty, the hub has no such model or revision, or requires a login.
      Unavailable: a download was cut off.
    """
    text = os.fspath(named)
    if not text.strip():
        raise InputError('the name of the model is empty: is a variable of the shell not set?')
    if not text.startswith('hf:'):
        return named
    path, _, revision = text.removeprefix('hf:').partition('@')
    organisation, _, name = path.partition('/')
    name, _, folder = name.partition('/')
    repository = _Repository(
        named=text, name=f'{organisation}/{name}' if name else organisation,
        revision=revision or None)
    patterns = [os.path.join(folder, pattern) for pattern in _MODEL_FILES]
    with _hub(repository) as hub:
        whole = _download(hub, repository, patterns)
    return os.path.join(whole, folder) if folder else whole


def parquet_files(named: str) -> list[str]:
    """The Parquet files of a split (or pattern) of a data set, downloaded into the hub's cache.

    Args:
      named: `hf:datasets/ORG/NAME[@REVISION]/PATH`; PATH is a split (`mrpc/train` for
        `mrpc/train-00000-of-00001.parquet`), a folder with the parts of one, or a pattern that ends
        in .parquet. Any other name is returned as it is, as the only file.

    Raises:
      InputError: as for `model_folder`; no such files, or a folder with several splits.
      Unavailable: a download was cut off.
    """
    if not named.startswith('hf:'):
        return [named]
    match = DATASET.fullmatch(named)
    if not match:
        raise InputError(f'{named}: write hf:datasets/ORG/NAME/PATH, such as '
                         'hf:datasets/nyu-mll/glue/mrpc/train')
    name, revision, path = match.groups()
    repository = _Repository(named=named, name=name, kind='dataset', revision=revision)
    path = path.rstrip('/')
    is_pattern = path.endswith('.parquet')
    patterns = [path]
    if not is_pattern:
        patterns = [f'{path}.parquet', f'{path}-*.parquet', f'{path}/*.parquet']
    with _hub(repository) as hub:
        folder = _download(hub, repository, patterns)
        there = glob.glob('**/*.parquet', root_dir=folder, recursive=True)
        files = sorted(hub.utils.filter_repo_objects(there, allow_patterns=patterns))
        if not files:
            there = hub.HfApi().list_repo_files(name, revision=revision, repo_type='dataset')
            raise _not_a_split(repository, 'no Parquet file has', there)
    if not is_pattern:
        # A folder with several splits is refused: a run would train on test rows.
        if len({_split(file) for file in files}) > 1:
            raise _not_a_split(repository, 'several splits have', files)
        _check_all_parts(repository, files)
    return [os.path.join(folder, file) for file in files]


def _split(file: str) -> str:
    """The path of a Parquet file without the number of the part."""
    return re.sub(r'([-/][\d_]+(-of-\d+.*)?)?\.parquet$', '', file)


def _not_a_split(repository: _Repository, what_has: str, files: Iterable[str]) -> InputError:
    """The error of a path that is not that of one split.

    Args:
      repository: the data set.
      what_has: what has this path instead, with its verb.
      files: those that the user can choose from.
    """
    splits = sorted({_split(file) for file in files if file.endswith('.parquet')})
    choices = ', '.join(splits[:20]) or 'none'
    return InputError(
        f'{repository.named}: {what_has} this path; name one of {choices}; what the hub made of '
        f'other formats is in hf:datasets/{repository.name}@refs/convert/parquet/CONFIG/SPLIT')


def _check_all_parts(repository: _Repository, files: Sequence[str]) -> None:
    """Checks that a split has as many parts as their names say.

    Raises:
      InputError: some are missing.
    """
    for file in files:
        total = re.search(r'-\d+-of-(\d+)\.parquet$', file)
        if total and len(files) != int(total[1]):
            raise InputError(
                f'{repository.named}: the cache has {len(files)} of its {int(total[1])} files, '
                f'and {_why_unreachable()}')


def _download(hub: Any, repository: _Repository, patterns: Sequence[str]) -> str:
    """Downloads the files that fit the patterns, unless the cache has them; returns their folder.

    Where the hub cannot be reached, the cache must have all of them.

    Raises:
      InputError: the disk of the cache has too little space, or a pipe is in it.
      Unavailable: a file differs from the hub's.
    """
    cache = hub.constants.HF_HUB_CACHE
    folder = f"{repository.kind}s--{repository.name.replace('/', '--')}"
    check_ends(os.path.join(cache, folder, 'refs', repository.revision or 'main'))
    hub.utils.disable_progress_bars()  # ours are lines, which a log can hold
    commit, missing = _files_to_download(hub, repository, patterns)
    if missing:
        _check_space(cache, repository, missing)
        _download_one_by_one(hub, repository, commit, missing)
    return str(hub.snapshot_download(
        repository.name, repo_type=repository.kind, revision=repository.revision,
        allow_patterns=patterns, library_name='bert_jax'))


def _files_to_download(
    hub: Any, repository: _Repository, patterns: Sequence[str]
) -> tuple[str, list[Any]]:
    """(commit, files that the cache lacks); no files where the hub does not list them."""
    try:
        info = hub.HfApi().repo_info(
            repository.name, repo_type=repository.kind, revision=repository.revision,
            files_metadata=True)
    except Exception:  # `snapshot_download` then finds all in the cache, or says what is wrong
        return '', []
    folder = os.path.join(os.path.dirname(patterns[0]), '')
    names = [file.rfilename.removeprefix(folder) for file in info.siblings
             if file.rfilename.startswith(folder)]
    if not any(map(_OTHER_WEIGHTS.fullmatch, names)):
        patterns = [*patterns, folder + _FLAX_FILE]
    missing = []
    for file in hub.utils.filter_repo_objects(
            info.siblings, allow_patterns=patterns, key=lambda file: file.rfilename):
        cached = hub.try_to_load_from_cache(
            repository.name, file.rfilename, repo_type=repository.kind, revision=info.sha)
        if not isinstance(cached, str):
            missing.append(file)
    return info.sha, missing


def _num_bytes(files: Iterable[Any]) -> int:
    """The size of files together, as far as the hub knows it."""
    return sum(file.size or 0 for file in files)


def _check_space(cache: str, repository: _Repository, files: Sequence[Any]) -> None:
    """Says what is downloaded, and checks that the disk of the cache has the space for it.

    huggingface_hub only warns of a full disk, and file by file.

    Raises:
      InputError: it has not.
    """
    os.makedirs(cache, exist_ok=True)
    free = shutil.disk_usage(cache).free
    needed = _num_bytes(files)
    noun = 'file' if len(files) == 1 else 'files'
    tell(f'{repository.named}: downloading {len(files)} {noun}, {_size(needed)}, into {cache}')
    if needed > free:
        raise InputError(
            f'{repository.named}: {_size(needed)} are to be downloaded, and the disk of {cache} '
            f'has {_size(free)}: free some, or set HF_HOME to a folder on another disk')


def _download_one_by_one(
    hub: Any, repository: _Repository, commit: str, files: Sequence[Any]
) -> None:
    """Downloads files into the cache, and reports now and then.

    One by one, so that each is compared before the next arrives: if the program is stopped, the
    cache has at most one file that was not, and what is in the cache is not looked at again.

    Raises:
      Unavailable: a file differs from the hub's.
    """
    num_bytes = _num_bytes(files)
    bytes_done = 0
    pace = Pace(_REPORT_SECONDS)
    for i, file in enumerate(files, 1):
        path = hub.hf_hub_download(
            repository.name, file.rfilename, repo_type=repository.kind, revision=commit,
            library_name='bert_jax')
        _check_content(path, file, repository)
        bytes_done += file.size or 0
        if pace.is_due() or i == len(files):
            rate = bytes_done / max(pace.seconds, 1e-3)
            minutes_left = pace.seconds_left(max(bytes_done, 1), num_bytes - bytes_done) / 60
            tell(f'{repository.named}: {i} of {len(files)}, {_size(bytes_done)}, {_size(rate)}/s, '
                 f'{minutes_left:.1f} min left')


def _size(num_bytes: float) -> str:
    if num_bytes >= 1e9:
        return f'{num_bytes / 1e9:.2f} GB'
    return f'{num_bytes / 1e6:.1f} MB'


def _check_content(path: str, file: Any, repository: _Repository) -> None:
    """Compares a downloaded file with the hub's SHA-256, if that is known, and deletes a wrong one.

    huggingface_hub compares only the size.

    Raises:
      Unavailable: it differs.
    """
    if not file.lfs:
        return
    with open(path, 'rb', buffering=0) as content:
        digest = hashlib.file_digest(content, 'sha256').hexdigest()
    if digest != file.lfs.sha256:
        os.unlink(os.path.realpath(path))
        if os.path.islink(path):  # to the content; HF_HUB_DISABLE_SYMLINKS makes a copy
            os.unlink(path)
        raise Unavailable(
            f'{repository.named}: {file.rfilename} arrived damaged and was deleted: the same '
            'command downloads it again')


def split_of(source: str, path: str) -> str:
    """A split of a data set that a user names as a whole, `hf:datasets/ORG/NAME[@REVISION]`.

    Args:
      source: what the user wrote.
      path: of the split in the data set.

    Returns:
      Its name for `parquet_files`; '' if `source` is something else, or names a path itself.
    """
    match = DATASET.fullmatch(source)
    if not match or match[3]:
        return ''
    return f"{source.rstrip('/')}/{path}"


def check_unpublished(named: str) -> None:
    """Refuses to publish over a model.

    Args:
      named: `hf:ORG/NAME`.

    Raises:
      InputError: the hub has files of this name.
      Unavailable: it does not answer.
    """
    repository = _Repository(named=named, name=named.removeprefix('hf:'))
    with _hub(repository) as hub:
        try:
            names = hub.list_repo_files(repository.name)
        except hub.errors.GatedRepoError:  # a subclass of the next
            raise
        except hub.errors.RepositoryNotFoundError:
            return
    published = [name for name in names if name != '.gitattributes']  # of every new repository
    if published:
        raise InputError(f"{named} is published already ({', '.join(published[:3])}): name another "
                         'model, or give --overwrite to publish over it')


def publish(folder: str | os.PathLike[str], named: str) -> None:
    """Uploads a folder as the model `hf:ORG/NAME`, which is created if it does not exist.

    Raises:
      InputError: the login may not write there.
      Unavailable: the upload was cut off.
    """
    repository = _Repository(named=named, name=named.removeprefix('hf:'))
    with _hub(repository) as hub:
        hub.create_repo(repository.name, exist_ok=True)
        hub.upload_folder(repo_id=repository.name, folder_path=folder)


@contextlib.contextmanager
def _hub(repository: _Repository) -> Iterator[Any]:
    """The package `huggingface_hub`, whose errors become one line."""
    with needing(f'{repository.named} is on the Hugging Face hub, which'):
        import huggingface_hub as hub

        # `hub.errors` is loaded by its import only.
        from huggingface_hub import errors, logging  # noqa: F401
    logging.set_verbosity_error()
    try:
        yield hub
    except (InputError, Unavailable):
        raise
    except Exception as error:  # also its HTTP client's, which depends on the version
        raise _explained(error, hub, repository) from None


def _explained(error: Exception, hub: Any, repository: _Repository) -> InputError | Unavailable:
    """The error of one line for what `huggingface_hub` raised."""
    errors = hub.errors
    kind = repository.kind
    if isinstance(error, errors.GatedRepoError):
        fault = f'it is gated: accept its terms on its page, and log in ({_LOG_IN})'
    elif isinstance(error, errors.RepositoryNotFoundError):
        similar = _similar_in_cache(hub, repository.name)
        fault = f'the hub has no such {kind}{similar}; for a private one log in ({_LOG_IN})'
    elif isinstance(error, errors.RevisionNotFoundError):
        fault = 'it has no such revision (@...): name a branch, a tag or a commit, or none'
    elif isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        similar = _similar_in_cache(hub, repository.name)
        own = 'files of your own as config.data.source'
        if kind == 'model':
            own = 'a folder of weights as config.init_checkpoint'
        fault = (f'it is not in the cache, or not all of it{similar}, and {_why_unreachable()}, or '
                 f'name {own}')
    elif isinstance(error, errors.HFValidationError):
        fault = 'write hf:ORG/NAME, such as hf:google-bert/bert-base-uncased'
    elif _status_code(error) in (401, 403):
        fault = f'log in with a token that may do this ({_LOG_IN})'
    else:
        return Unavailable(
            f'{repository.named}: the transfer failed ({first_line(error)}): the same command '
            'goes on with it')
    return InputError(f'{repository.named}: {fault}')


def _why_unreachable() -> str:
    """Why the hub does not answer, and what to do."""
    for switch in _OFFLINE:
        value = os.environ.get(switch, '')
        if value.upper() in ('1', 'ON', 'YES', 'TRUE'):
            return f'{switch}={value} forbids asking the hub: unset {switch}'
    return 'the hub cannot be reached: check the network'


def _status_code(error: Exception) -> int:
    """The HTTP status that a server answered; 0 if the error is another."""
    response = getattr(error, 'response', None)
    return getattr(response, 'status_code', 0)


def _similar_in_cache(hub: Any, name: str) -> str:
    """Names the most similar repository in the cache, if any."""
    with contextlib.suppress(Exception):  # there is no cache, or it is damaged
        names = {repository.repo_id for repository in hub.scan_cache_dir().repos} - {name}
        close = difflib.get_close_matches(name, names, 1, 0.8)
        if close:
            return f' (the cache has {close[0]})'
    return ''
