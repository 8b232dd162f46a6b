"""Models and data sets of the Hugging Face hub, by name.

Cache, token and offline switch are those of `huggingface_hub` (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

import contextlib
import difflib
import fnmatch
import glob
import os
import re
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, first_line, needing

_MODEL_FILES = ['*.json', '*.safetensors', '*.txt', '*.model']  # no pickle
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
    return [os.path.join(folder, file) for file in found]


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
    except errors.GatedRepoError:
        fault = 'it is gated: accept its terms on its page, and log in (hf auth login, or HF_TOKEN)'
    except errors.RepositoryNotFoundError:
        fault = (f'the hub has no such {kind}{_nearest(hub, name)}; for a private one log in '
                 '(hf auth login, or HF_TOKEN)')
    except errors.RevisionNotFoundError:
        fault = 'it has no such revision (@...): name a branch, a tag or a commit, or none'
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        fault = (f'it is not in the cache, or not all of it{_nearest(hub, name)}, and the hub '
                 'cannot be reached: check the network, or unset HF_HUB_OFFLINE')
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
