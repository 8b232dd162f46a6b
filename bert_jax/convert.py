"""Converts a model's weights between this project, TensorFlow 1, Hugging Face and peft.

    python -m bert_jax.convert SOURCE TARGET --to huggingface|tf1|bert_jax|peft

SOURCE is a run directory, a Hugging Face folder, or a TF1 checkpoint, as for
`--config.init_checkpoint` and `bert_jax.predict`. TARGET is a new folder (nothing is overwritten),
or hf:ORG/NAME, a model to publish on the Hugging Face hub; --overwrite publishes over one that is
there. --card=FILE adds Markdown of yours to the model card: training data, scores, intended use,
and language and license in its front matter. Exit status: 0 done, 2 bad input (one line on standard
error), 1 anything else.

SOURCE is one of
  a run directory of this project      runs/base (its best checkpoint if kept, else the newest)
  a Hugging Face folder                config.json, model.safetensors (or shards), vocab.txt;
                                       flax_model.msgpack where there is no safetensors
  an adapter of peft                   adapter_config.json, adapter_model.safetensors; it names its
                                       base, a folder or a model of the hub
  a model of the Hugging Face hub      hf:ORG/NAME, hf:ORG/NAME@REVISION; hf:ORG/NAME/FOLDER
  a TensorFlow 1 checkpoint            FOLDER or FOLDER/bert_model.ckpt, with bert_config.json
  a .zip of google-research/bert       gs://bert_models/2018_10_18/uncased_L-12_H-768_A-12.zip

what each --to writes
  huggingface   config.json, model.safetensors (shards where it is over 5 GB), vocab.txt,
                tokenizer.json, tokenizer_config.json and a model card, README.md, for
                from_pretrained of the class that has the model's head
  tf1           bert_model.ckpt.*, bert_config.json, vocab.txt, for google-research/bert
  bert_jax      config.json, checkpoints/0, vocab.txt: a run directory
  peft          adapter_config.json, adapter_model.safetensors: the adapter and the head of a model
                that was trained with an adapter

--merge brings an adapter into the kernels that it stands beside; huggingface and tf1 hold no other.
--adapter=NAME takes SOURCE with one of the adapters that its files hold for several tasks
(jina-embeddings-v3), which is in the kernels and tables then, or with a folder of peft.

examples
  python -m bert_jax.convert runs/base base_hf --to huggingface
  python -m bert_jax.convert uncased_L-12_H-768_A-12/bert_model.ckpt bert_base --to bert_jax
  python -m bert_jax.convert my_hf_model my_tf1_model --to tf1
  python -m bert_jax.convert runs/base hf:ORG/NAME --to huggingface
  python -m bert_jax.convert runs/lora my_adapter --to peft
  python -m bert_jax.convert runs/lora my_hf_model --to huggingface --merge
  python -m bert_jax.convert hf:jinaai/jina-embeddings-v3 queries --to bert_jax --adapter \
      retrieval.query

Every parameter is copied bit for bit (16-bit floats become float32). Optimizer moments are not
copied.
"""

import functools
from collections.abc import Callable, Sequence

from bert_jax.config.command_line import Parser
from bert_jax.foreign import load_weights, with_adapter
from bert_jax.runtime.errors import InputError, visible
from bert_jax.runtime.files import Path, as_path
from bert_jax.runtime.hub import check_unpublished
from bert_jax.runtime.new_folder import check_free
from bert_jax.runtime.process import error_boundary
from bert_jax.weights.parameters import Weights


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command (see the top of this file)."""
    parser = Parser('python -m bert_jax.convert', __doc__)
    parser.add_argument('source', metavar='SOURCE', help='the model to read')
    parser.add_argument('target', metavar='TARGET',
                        help='the folder to write, new or empty; or hf:ORG/NAME')
    parser.add_argument('--to', required=True, choices=('huggingface', 'tf1', 'bert_jax', 'peft'),
                        help='what to write')
    parser.add_argument('--adapter', metavar='NAME',
                        help='add an adapter to the model of SOURCE: one of those that its files '
                        'hold for several tasks, or a folder of peft')
    parser.add_argument('--merge', action='store_true',
                        help='bring the adapter of the model into its kernels')
    parser.add_argument('--overwrite', action='store_true',
                        help='publish over a model that the hub has already')
    parser.add_argument('--card', metavar='FILE',
                        help='Markdown of yours for the model card of --to huggingface')
    args = parser.parse_args(argv)
    with error_boundary(writing=args.target):
        # Imported here: `--help` need not wait for orbax.
        from bert_jax.foreign.huggingface import NO_CARD, read_card, write_huggingface
        from bert_jax.foreign.peft import write_peft
        from bert_jax.foreign.tf1 import write_tf1
        from bert_jax.run.model import write_run

        if args.card and args.to != 'huggingface':
            raise InputError(f'--card={args.card}: only --to huggingface writes a model card')
        card = read_card(args.card) if args.card else NO_CARD
        writers: dict[str, Callable[[Path, Weights], list[str]]] = {
            'huggingface': functools.partial(write_huggingface, card=card),
            'tf1': write_tf1,
            'bert_jax': write_run,
            'peft': write_peft,
        }
        target = as_path(args.target)
        check_free(target)
        if args.target.startswith('hf:') and not args.overwrite:
            check_unpublished(args.target)
        weights = load_weights(args.source, keep_adapter=True)
        if args.adapter:
            weights = with_adapter(weights, args.adapter, keep_adapter=True)
        if args.merge:
            weights = _merged(weights, args.to)
        elif weights.adapter is not None and args.to in ('huggingface', 'tf1'):
            weights = _without_low_rank(weights, args.to)
        _print_summary(weights)
        notes = writers[args.to](target, weights)
    print(visible(f'wrote {args.to}: {args.target}'))
    for note in notes:
        print(visible(f'note: {note}'))


def _merged(weights: Weights, to: str) -> Weights:
    """The weights with their adapter in the kernels.

    Raises:
      InputError: there is none, or the format is that of adapters.
    """
    if weights.adapter is None:
        raise InputError(
            f'{weights.source} has no adapter beside its kernels: leave --merge out')
    if to == 'peft':
        raise InputError('--to peft writes the adapter by itself: leave --merge out')
    return weights.merged


def _without_low_rank(weights: Weights, to: str) -> Weights:
    """The weights for a format without adapters; biases that were trained are among its own.

    Raises:
      InputError: there are matrices beside the kernels.
    """
    if weights.adapter is not None and weights.adapter.options.is_low_rank:
        raise InputError(f'{weights.source} has an adapter, which --to {to} does not hold: add '
                         '--merge to bring it into the kernels, or write it with --to peft')
    return weights.merged


def _print_summary(weights: Weights) -> None:
    """Prints what was read."""
    model = weights.model
    num_parameters = sum(x.size for x in weights.params.values())
    head = weights.head or 'none'
    if weights.labels:
        labels = ', '.join(weights.labels).replace('\n', r'\n')
        head += f' ({labels})'
    lines = [
        f'read {weights.source}',
        f"  {model['num_layers']} layers, hidden size {model['hidden_size']}, "
        f"{model['num_heads']} heads, vocabulary {model['vocab_size']:,}, {model['hidden_act']}",
        f'  {len(weights.params)} tensors, {num_parameters:,} parameters',
        f'  head: {head}',
    ]
    if weights.adapter is not None:
        options = weights.adapter.options
        what = f'rank {options.rank}, {options.targets}' if options.is_low_rank else 'biases'
        lines.append(f'  adapter: {options.kind} ({what})')
    if weights.unused:
        lines.append(f"  left out: {', '.join(weights.unused)}")
    print(visible('\n'.join(lines)), flush=True)


if __name__ == '__main__':
    main()
