"""Tokenizers of the kinds that people have, trained by the library that they come from."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import sentencepiece
import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import decoders as of_decoders

# Words with capitals, accents, several scripts, digits and signs, some of them often.
TEXTS = [
    "The cat sat on the mat, and the dog didn't see it: 12,345 times!",
    'Ünïcödé naïve café — “quoted” text… costs 3€ or $4.50 (maybe).',
    'Москва и Київ, 東京と京都, 서울, ภาษาไทย, हिन्दी, العربية 123',
    'a an the is was were be been being of to in on at by for with from',
    'unaffable unwanted walking walked talks talked talking sleeper sleeps',
    'e-mail: someone@example.org; see https://example.org/a_b?c=d#e 😀👍🏽 ﬁﬂ ½ ㌔',
] * 40
ROBERTAS = ('<s>', '<pad>', '</s>', '<unk>')


def roberta(vocab_size: int = 400) -> Tokenizer:
    """Byte-level BPE as RoBERTa's: two separators in a pair, `<mask>` last and with its space."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = of_decoders.ByteLevel()
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=vocab_size - 1, special_tokens=list(ROBERTAS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    library.add_special_tokens([AddedToken('<mask>', lstrip=True, special=True)])
    library.post_processor = processors.RobertaProcessing(
        ('</s>', 2), ('<s>', 0), add_prefix_space=False)
    return library


def modernbert(vocab_size: int = 400) -> Tokenizer:
    """Byte-level BPE as ModernBERT's: NFC, special tokens behind the pieces, runs of spaces."""
    library = Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    library.decoder = of_decoders.ByteLevel()
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=vocab_size - 10, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    library.add_tokens([AddedToken(' ' * n, normalized=True) for n in (4, 3, 2)])
    library.add_special_tokens(['[UNK]', '[CLS]', '[SEP]', '[PAD]'])
    library.add_special_tokens([AddedToken('[MASK]', lstrip=True, special=True)])
    cls, sep = library.token_to_id('[CLS]'), library.token_to_id('[SEP]')
    library.post_processor = processors.TemplateProcessing(
        single='[CLS]:0 $A:0 [SEP]:0', pair='[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1',
        special_tokens=[('[CLS]', cls), ('[SEP]', sep)])
    return library


def split_by_regex(vocab_size: int = 400) -> Tokenizer:
    """Byte-level BPE whose words a pattern of its own finds, as in newer tokenizers."""
    library = modernbert(vocab_size)
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return library


def llama3(vocab_size: int = 400) -> Tokenizer:
    """As EuroBERT's: words by a pattern, ids before merges, ends that are Llama 3's."""
    library = split_by_regex(vocab_size)
    begin, end = '<|begin_of_text|>', '<|end_of_text|>'
    library.model.ignore_merges = True
    library.normalizer = None
    library.add_special_tokens([begin, end, '<|mask|>'])
    frame = processors.TemplateProcessing(
        single=f'{begin}:0 $A:0 {end}:0', pair=f'{begin}:0 $A:0 {end}:0 $B:1 {end}:1',
        special_tokens=[(token, library.token_to_id(token)) for token in (begin, end)])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame])
    return library


def xlmr(vocab_size: int = 300) -> Tokenizer:
    """Unigram as XLM-R's: white space, then marks of words; two separators in a pair."""
    library = Tokenizer(models.Unigram())
    library.normalizer = normalizers.Sequence([
        normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(' {2,}'), ' ')])
    library.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    library.decoder = of_decoders.Metaspace()
    library.train_from_iterator(TEXTS, trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=[*ROBERTAS, '<mask>'], unk_token='<unk>',
        show_progress=False))
    library.post_processor = processors.TemplateProcessing(
        single='<s> $A </s>', pair='<s> $A </s> </s> $B </s>',
        special_tokens=[('<s>', 0), ('</s>', 2)])
    return library


def camembert(vocab_size: int = 300) -> Tokenizer:
    """Unigram without a step that splits at white space."""
    library = xlmr(vocab_size)
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    return library


def accented_wordpiece(vocab_size: int = 400) -> Tokenizer:
    """WordPiece with another normalizer and other rules for words than BERT's."""
    library = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.decoder = of_decoders.WordPiece()
    library.train_from_iterator(TEXTS, trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'],
        show_progress=False))
    library.post_processor = processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
    return library


KINDS: dict[str, Callable[[], Tokenizer]] = {
    'roberta': roberta,
    'modernbert': modernbert,
    'split_by_regex': split_by_regex,
    'llama3': llama3,
    'xlmr': xlmr,
    'camembert': camembert,
    'accented_wordpiece': accented_wordpiece,
}


def write(folder: Path, library: tokenizers.Tokenizer, **settings: object) -> Path:
    """Writes tokenizer.json, and tokenizer_config.json if it has settings; the former's path."""
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / 'tokenizer.json'))
    if settings:
        (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
    return folder / 'tokenizer.json'


def sentence_piece(texts: Sequence[str] = TEXTS, **settings: object) -> bytes:
    """A SentencePiece model of these texts, with these settings of its trainer."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts), model_writer=written, vocab_size=200, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
        control_symbols=['[CLS]', '[SEP]', '[MASK]'], **settings)
    return written.getvalue()
