"""Models and data sets of the Hugging Face hub, by name.

Cache, token and offline switch are those of `huggingface_hub` (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

import contextlib
import difflib
import fnmatch
import glob
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, first_line, needing, tell

_MODEL_FILES = ['*.json', '*.safetensors', '*.txt', '*.model']  # no pickle
_REPORT_SECONDS = 20.0
# Name, revision and path of a data set. Revisions with slashes are only those under which the hub
# keeps its own Parquet copies.
DATASET = re.compile(r'hf:datasets/([^/@]+/[^/@]+)(?:@(refs/convert/\w+|[^/]+))?/?(.*)')


def model_folder(named: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Downloads a model `hf:ORG/NAME[@REVISION]` into the hub's cache and returns its folder.

    Any other name is returned as it is.

    Raises:
      InputError: the hub has no such model or revision, or requires a login.
      Unavailable: a download was cut off.
    """
    text = os.fspath(named)
    if not text.startswith('hf:'):
        return named
    name, _, revision = text.removeprefix('hf:').partition('@')
    with _hub(text, name) as hub:
        _download(hub, text, name, 'model', revision or None, _MODEL_FILES)
        return str(hub.snapshot_download(
            name, revision=revision or None, allow_patterns=_MODEL_FILES, library_name='bert_jax'))


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
    path = path.rstrip('/')
    ends = ('',) if path.endswith('.parquet') else ('.parquet', '-*.parquet', '/*.parquet')
    patterns = [path + end for end in ends]
    with _hub(named, name, 'dataset') as hub:
        _download(hub, named, name, 'dataset', revision, patterns)
        folder = hub.snapshot_download(name, repo_type='dataset', revision=revision,
                                       allow_patterns=patterns, library_name='bert_jax')
        found = sorted(file for file in glob.glob('**/*.parquet', root_dir=folder, recursive=True)
                       if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns))
        # A folder with several splits is refused: a run would train on test rows.
        is_one = found and (path.endswith('.parquet') or len(set(map(_split, found))) == 1)
        there = found or hub.HfApi().list_repo_files(name, revision=revision, repo_type='dataset')
    if not is_one:
        parts = sorted({_split(file) for file in there if file.endswith('.parquet')})
        raise InputError(
            f"{named}: {'several splits have' if found else 'no Parquet file has'} this path; name "
            f"one of {', '.join(parts[:20]) or 'none'}; what the hub made of other formats is in "
            f'hf:datasets/{name}@refs/convert/parquet/CONFIG/SPLIT')
    for file in found:
        total = re.search(r'-\d+-of-(\d+)\.parquet$', file)
        if total and not path.endswith('.parquet') and len(found) != int(total[1]):
            raise InputError(f'{named}: the cache has {len(found)} of its {int(total[1])} files, '
                             'and the hub cannot be reached: check the network')
    return [os.path.join(folder, file) for file in found]


def _download(
    hub: Any, named: str, name: str, kind: str, revision: str | None, patterns: Sequence[str]
) -> None:
    """Downloads the files of a model or data set that the cache lacks, and says how much and where.

    Does nothing where the hub cannot be reached: then the cache may have all of them. A file that
    was cut off is continued, and each is compared with the hub's SHA-256.

    Raises:
      InputError: the disk of the cache has too little space.
      Unavailable: a file differs from the hub's.
    """
    hub.utils.disable_progress_bars()  # ours are lines, which a log can hold
    try:
        info = hub.HfApi().repo_info(
            name, repo_type=kind, revision=revision, files_metadata=True)
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError):
        raise
    except Exception:  # its HTTP client's, which depends on the version
        return
    missing = []
    for file in info.siblings:
        wanted = any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in patterns)
        cached = hub.try_to_load_from_cache(
            name, file.rfilename, repo_type=kind, revision=info.sha)
        if wanted and not isinstance(cached, str):
            missing.append(file)
    total = sum(file.size or 0 for file in missing)
    if not missing:
        return
    cache = hub.constants.HF_HUB_CACHE
    os.makedirs(cache, exist_ok=True)
    free = shutil.disk_usage(cache).free
    tell(f"{named}: downloading {len(missing)} file{'s' * (len(missing) > 1)}, {_size(total)}, "
         f'into {cache}')
    if total > free:
        raise InputError(f'{named}: {_size(total)} are to be downloaded, and the disk of {cache} '
                         f'has {_size(free)}: free some, or set HF_HOME to a folder on another '
                         'disk')
    begun = told = time.monotonic()
    done = 0
    for number, file in enumerate(missing, 1):
        path = hub.hf_hub_download(
            name, file.rfilename, repo_type=kind, revision=info.sha, library_name='bert_jax')
        _check_content(path, file, named)
        done += file.size or 0
        now = time.monotonic()
        if now - told > _REPORT_SECONDS or number == len(missing):
            told = now
            rate = done / max(now - begun, 1e-3)
            tell(f'{named}: {number} of {len(missing)}, {_size(done)}, {_size(rate)}/s, '
                 f'{(total - done) / max(rate, 1) / 60:.1f} min left')


def _size(num_bytes: float) -> str:
    return f'{num_bytes / 1e9:.2f} GB' if num_bytes >= 1e9 else f'{num_bytes / 1e6:.1f} MB'


def _check_content(path: str, file: Any, named: str) -> None:
    """Compares a downloaded file with the hub's SHA-256, if that is known, and deletes a wrong one.

    Raises:
      Unavailable: it differs.
    """
    if not file.lfs:
        return
    with open(path, 'rb', buffering=0) as content:
        digest = hashlib.file_digest(content, 'sha256').hexdigest()
    if digest != file.lfs.sha256:
        os.unlink(os.path.realpath(path))
        os.unlink(path)
        raise Unavailable(f'{named}: {file.rfilename} arrived damaged and was deleted: the same '
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
    return f"{source.rstrip('/')}/{path}" if match and not match[3] else ''


def publish(folder: str | os.PathLike[str], named: str) -> None:
    """Uploads a folder as the model `hf:ORG/NAME`, which is created if it does not exist.

    Raises:
      InputError: the login may not write there.
      Unavailable: the upload was cut off.
    """
    name = named.removeprefix('hf:')
    with _hub(named, name) as hub:
        hub.create_repo(name, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder)


def _split(file: str) -> str:
    """The path of a Parquet file without the number of the part."""
    return re.sub(r'([-/][\d_]+(-of-\d+.*)?)?\.parquet$', '', file)


@contextlib.contextmanager
def _hub(named: str, name: str, kind: str = 'model') -> Iterator[Any]:
    """The package `huggingface_hub`, whose errors become one line.

    Args:
      named: what the user wrote.
      name: of the repository, ORG/NAME.
      kind: model | dataset.
    """
    with needing(f'{named} is on the Hugging Face hub, which', 'huggingface_hub'):
        import huggingface_hub as hub
        from huggingface_hub import errors, logging
    logging.set_verbosity_error()
    try:
        yield hub
        return
    except (InputError, Unavailable):
        raise
    except errors.GatedRepoError:
        fault = 'it is gated: accept its terms on its page, and log in (hf auth login, or HF_TOKEN)'
    except errors.RepositoryNotFoundError:
        fault = (f'the hub has no such {kind}{_nearest(hub, name)}; for a private one log in '
                 '(hf auth login, or HF_TOKEN)')
    except errors.RevisionNotFoundError:
        fault = 'it has no such revision (@...): name a branch, a tag or a commit, or none'
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        own = ('a folder of weights as config.init_checkpoint' if kind == 'model' else
               'files of your own as config.data.source')
        fault = (f'it is not in the cache, or not all of it{_nearest(hub, name)}, and the hub '
                 f'cannot be reached: check the network, unset HF_HUB_OFFLINE, or name {own}')
    except errors.HFValidationError:
        fault = 'write hf:ORG/NAME, such as hf:google-bert/bert-base-uncased'
    except Exception as error:  # also its HTTP client's, which depends on the version
        if getattr(getattr(error, 'response', None), 'status_code', 0) not in (401, 403):
            raise Unavailable(f'{named}: the transfer failed ({first_line(error)}): the same '
                              'command goes on with it') from None
        fault = 'log in with a token that may do this (hf auth login, or HF_TOKEN)'
    raise InputError(f'{named}: {fault}')


def _nearest(hub: Any, name: str) -> str:
    """Names the most similar repository in the cache, if any."""
    with contextlib.suppress(Exception):  # there is no cache, or it is damaged
        names = {repo.repo_id for repo in hub.scan_cache_dir().repos} - {name}
        if close := difflib.get_close_matches(name, names, 1, 0.8):
            return f' (the cache has {close[0]})'
    return ''
