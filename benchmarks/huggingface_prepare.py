"""Raw text to ids of Hugging Face: `datasets.map` with a fast tokenizer.

    python benchmarks/huggingface_prepare.py --text 'wiki/*.txt.gz' --vocab_file vocab.txt

It reads the lines of the files, tokenizes them in batches of a thousand in a process for each core,
as the recipes of transformers do (run_mlm), and writes the ids to a disk. It splits no sentences,
looks for no duplicates and cleans nothing, all of which `bert_jax.tools.prepare` does. Its caches
are in a folder of their own, anew each time. `python -m benchmarks.page` starts it.

Needs `pip install datasets transformers`.
"""

import argparse
import glob
import os
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--text', required=True, help='files, also with *, also .gz')
    parser.add_argument('--vocab_file', required=True, help="such as bert-base-uncased's")
    args = parser.parse_args()
    files = sorted(glob.glob(args.text))
    if not files:
        parser.error(f'--text={args.text}: no such file')
    import datasets
    import transformers

    datasets.disable_progress_bars()
    tokenizer = transformers.BertTokenizerFast(args.vocab_file)
    with tempfile.TemporaryDirectory() as folder:
        texts = datasets.load_dataset('text', data_files=files, split='train', cache_dir=folder)
        ids = texts.map(
            lambda lines: {'input_ids': tokenizer(
                lines['text'], return_attention_mask=False,
                return_token_type_ids=False)['input_ids']},
            batched=True, num_proc=len(os.sched_getaffinity(0)), remove_columns='text')
        ids.save_to_disk(Path(folder, 'ids'))
        print(f'{len(ids):,} lines')


if __name__ == '__main__':
    main()
