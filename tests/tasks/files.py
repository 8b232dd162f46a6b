"""Writes the input files of tests."""

import gzip
import json


def put(folder, name, content):
    """Writes a file, with text gzipped if the name ends in .gz; returns its path as a string.

    `content` is bytes, text, a dict (written as JSON), or a list of lines: texts or JSON objects.
    """
    if isinstance(content, list):
        content = '\n'.join(x if isinstance(x, str) else json.dumps(x) for x in content)
    elif isinstance(content, dict):
        content = json.dumps(content)
    if isinstance(content, str):
        content = gzip.compress(content.encode()) if name.lower().endswith('.gz') else (
            content.encode())
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)
