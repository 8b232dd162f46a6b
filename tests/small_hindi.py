"""A little Hindi, made by a grammar: articles, a treebank's sentences, and opinions.

Devanagari has no capitals, sentences end with a danda, and vowel signs are marks, which an uncased
vocabulary would drop as accents.
"""

import bz2
import random
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

NAMES = ('रामपुर', 'सीतापुर', 'चंदनगढ़', 'कमलापुर', 'देवनगर', 'सूरजपुर', 'नीलगंज', 'हरिपुर', 'मोतीबाग',
         'किशनगढ़', 'लालगंज', 'फूलपुर', 'शिवपुरी', 'गोपालगंज', 'रतनपुर', 'बेलापुर')
RIVERS = ('गंगा', 'यमुना', 'नर्मदा', 'गोमती', 'सोन', 'बेतवा', 'चंबल', 'केन')
GOOD = ('अच्छा', 'सुंदर', 'रोचक', 'मज़ेदार', 'बढ़िया', 'अनोखा')
BAD = ('बुरा', 'बेकार', 'थकाऊ', 'कमज़ोर', 'नीरस', 'अधूरा')
WORDS = {
    'name': NAMES,
    'river': RIVERS,
    'kind': ('गाँव', 'नगर', 'शहर', 'कस्बा'),
    'look': ('छोटा', 'बड़ा', 'पुराना', 'नया', 'शांत', 'हरा'),
    'thing': ('मंदिर', 'बाज़ार', 'विद्यालय', 'पुस्तकालय', 'किला', 'तालाब', 'बगीचा', 'अस्पताल'),
    'crop': ('गेहूँ', 'चावल', 'गन्ना', 'कपास', 'आम', 'चना'),
    'number': ('दो', 'तीन', 'चार', 'पाँच', 'छह', 'सात', 'आठ', 'नौ', '12', '40'),
    'work': ('फ़िल्म का अंत', 'यह नाटक', 'यह उपन्यास', 'उसका अभिनय', 'यह गाना', 'पूरा कार्यक्रम'),
}
# A word, or what it is drawn from, and its part of speech in Universal Dependencies.
SENTENCES = (
    'name/PROPN river/PROPN के/ADP किनारे/NOUN एक/NUM look/ADJ kind/NOUN है/AUX ।/PUNCT',
    'यहाँ/PRON number/NUM look/ADJ thing/NOUN हैं/AUX ।/PUNCT',
    'name/PROPN के/ADP लोग/NOUN crop/NOUN उगाते/VERB हैं/AUX ।/PUNCT',
    'यह/DET thing/NOUN number/NUM सौ/NUM साल/NOUN पुराना/ADJ है/AUX ।/PUNCT',
    'हर/DET साल/NOUN यहाँ/PRON एक/NUM look/ADJ मेला/NOUN लगता/VERB है/AUX ।/PUNCT',
    'crop/NOUN और/CCONJ crop/NOUN इसकी/PRON मुख्य/ADJ फ़सलें/NOUN हैं/AUX ।/PUNCT',
    'name/PROPN से/ADP name/PROPN की/ADP दूरी/NOUN number/NUM किलोमीटर/NOUN है/AUX ।/PUNCT',
    'river/PROPN में/ADP हर/DET साल/NOUN बाढ़/NOUN आती/VERB है/AUX ।/PUNCT',
)


def tagged_sentence(rng: random.Random) -> tuple[list[str], list[str]]:
    """(Words, their parts of speech) of a sentence."""
    words = []
    tags = []
    for entry in rng.choice(SENTENCES).split():
        word, tag = entry.split('/')
        words.append(rng.choice(WORDS.get(word, (word,))))
        tags.append(tag)
    return words, tags


def sentence(rng: random.Random) -> str:
    """A sentence as it is written, with the danda at its last word."""
    words, _ = tagged_sentence(rng)
    return ' '.join(words).replace(' ।', '।')


def opinion(rng: random.Random) -> tuple[str, str]:
    """(A sentence of praise or complaint, its label)."""
    label = rng.choice(('positive', 'negative'))
    judged = rng.choice(GOOD if label == 'positive' else BAD)
    return f"{rng.choice(WORDS['work'])} बहुत {judged} है।", label


def article(rng: random.Random, num_sentences: int) -> str:
    """The wikitext of an article, with markup that a reader does not see."""
    paragraphs = []
    for _ in range(3):
        sentences = [sentence(rng) for _ in range(num_sentences // 3)]
        paragraphs.append(' '.join(sentences))
    linked = paragraphs[0].replace('गाँव', '[[गाँव]]')
    return '\n\n'.join([f'{{{{ज्ञानसन्दूक}}}}{linked}<ref>स्रोत</ref>', *paragraphs[1:]])


def write_dump(file: Path, articles: Sequence[str]) -> None:
    """Writes a dump of Wikipedia, compressed as it is downloaded."""
    pages = []
    for number, text in enumerate(articles):
        pages.append(
            f'<page><title>लेख {number}</title><ns>0</ns><id>{number}</id><revision>'
            f'<text xml:space="preserve">{escape(text)}</text></revision></page>')
    content = '<mediawiki>\n' + '\n'.join(pages) + '\n</mediawiki>\n'
    file.write_bytes(bz2.compress(content.encode()))
