"""One host of several: makes the runs that it is told of, one after the other, in one process.

    python -m tests.e2e.hosts_worker '[{"workdir": ..., "reverse": false, "fields": {...}}, ...]'
"""

import json
import sys

import jax

from bert_jax.config import default_config
from bert_jax.runtime import hosts
from bert_jax.runtime.files import as_path
from bert_jax.train import experiment


def main() -> None:
    hosts.connect()
    in_order = jax.devices()
    for run in json.loads(sys.argv[1]):
        devices = in_order[::-1] if run['reverse'] else in_order
        jax.devices = lambda devices=devices: devices
        config = default_config()
        with config.unlocked():
            config.update_from_flattened_dict(run['fields'])
        result = experiment.run(config, as_path(run['workdir']), lambda step: False)
        hosts.say('result ' + json.dumps(result))
    hosts.barrier('end')


if __name__ == '__main__':
    main()
