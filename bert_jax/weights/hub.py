"""Models of the Hugging Face hub by name, `hf:ORG/NAME` or `hf:ORG/NAME@REVISION`."""

from __future__ import annotations

import difflib
import os

from bert_jax.runtime.errors import InputError

PREFIX = 'hf:'
_FILES = ['*.json', '*.safetensors', '*.txt', '*.model']  # no pickle


def from_hub(named: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Downloads a model named `hf:...` into the hub's cache; its folder. Else returns `named`.

    Cache, token and offline switch are those of `huggingface_hub` (HF_HOME, HF_TOKEN,
    HF_HUB_OFFLINE).

    Raises:
      InputError: the hub has no such model or revision, requires a login, or cannot be reached.
    """
    text = os.fspath(named)
    if not text.startswith(PREFIX):
        return named
    try:
        from huggingface_hub import errors, snapshot_download
    except ModuleNotFoundError:
        raise InputError(f'{text} is on the Hugging Face hub, and huggingface_hub is not '
                         "installed: python -m pip install 'huggingface_hub'") from None
    name, _, revision = text.removeprefix(PREFIX).partition('@')
    try:
        return str(snapshot_download(
            name, revision=revision or None, allow_patterns=_FILES, library_name='bert_jax'))
    except errors.GatedRepoError:
        fault = 'accept its terms on its page there, and log in (hf auth login, or HF_TOKEN)'
    except errors.RepositoryNotFoundError:
        fault = (f'the hub has no such model{_nearest(name)}; for a private one log in '
                 '(hf auth login, or HF_TOKEN)')
    except errors.RevisionNotFoundError:
        fault = f'it has no revision {revision!r}: name a branch, a tag or a commit, or none'
    except errors.LocalEntryNotFoundError:
        fault = (f'it is not in the cache, and the hub cannot be reached{_nearest(name)}: check '
                 'the network, or unset HF_HUB_OFFLINE')
    except errors.HFValidationError:
        fault = 'write hf:ORG/NAME, such as hf:google-bert/bert-base-uncased'
    except (errors.HfHubHTTPError, OSError) as error:
        fault = f"it cannot be downloaded ({' '.join(str(error).split())[:200]}): try again"
    raise InputError(f'{text}: {fault}')


def _nearest(name: str) -> str:
    """The most similar model name in the cache, for a message."""
    from huggingface_hub import scan_cache_dir

    try:
        known = [repo.repo_id for repo in scan_cache_dir().repos if repo.repo_type == 'model']
    except Exception:  # there is no cache yet
        return ''
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f' (did you mean hf:{close[0]}, which is in the cache?)' if close else ''
