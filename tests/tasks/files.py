"""Files that tests of tasks write."""

import gzip
import json


def put(folder, name, content):
    """Writes a file, text gzipped where the name ends so; returns its path as a string.

    `content` is bytes, text, an object for JSON, or lines: each is text or an object for JSON.
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
