"""Files of words with tags as people write them: columns, headers, comments, other beginnings."""

import pytest

from bert_jax.tasks.tagging import read_tagged
from tests.refusals import refused
from tests.tasks.files import put

SENTENCES = [(['Anna', 'Lee', 'lives', 'in', 'Rome'], ['B-PER', 'I-PER', 'O', 'O', 'B-LOC']),
             (['Bob', 'met', '#'], ['B-PER', 'O', 'O'])]


def lines(template, *, between='\n', before=''):
    """The sentences with a line for each word.

    Args:
      template: of a line, of `word`, `tag`, `i` (its number in the sentence) and `n` (that of the
        sentence), all from 0.
      between: stands between sentences.
      before: stands before each.
    """
    parts = []
    for n, (words, tags) in enumerate(SENTENCES):
        of_words = [template.format(word=word, tag=tag, i=i, n=n)
                    for i, (word, tag) in enumerate(zip(words, tags, strict=True))]
        parts.append(before.format(n=n) + '\n'.join(of_words) + '\n')
    return between.join(parts)


READ = {
    'two columns': (lines('{word} {tag}'), ''),
    'TABs': (lines('{word}\t{tag}'), ''),
    'TABs and spaces': (lines('{word} NN\t{tag}'), ''),
    'two TABs': (lines('{word}\t\t{tag}'), ''),
    'other white space': (lines('{word} {tag}', between='\u00a0\n\u3000 \n'), ''),
    'space at the end': (lines('{word} {tag} \t', between=' \t\n'), ''),
    'mark, line ends of Windows': ('\ufeff' + lines('{word} {tag}').replace('\n', '\r\n'), ''),
    'a header': ('Token\tNER\n' + lines('{word}\t{tag}'), "line 1: 'Token NER' is read as a head"),
    'a header of four': ('word pos chunk ner_tag\n' + lines('{word} NN O {tag}'), 'as a header'),
    "a header of German's": ('WORD NE\n' + lines('{word} {tag}'), "'WORD NE' is read as a header"),
    'a header of two tags': (
        'TOKEN NE-LIT MISC\n' + lines('{word} _ {tag}'), "line 1: 'TOKEN NE-LIT MISC' is read as"),
    'one comment': ('# all mine\n' + lines('{word} {tag}'),
                    'line 1, which begins with #, is read as a comment'),
    'fields': (lines('{word} {tag}', before='#newdoc id={n}\n'), '2 lines that begin with #'),
    'the same fields': (
        lines('{word} _ _ {tag}', before='# speaker = A\n'), '2 lines that begin with #'),
    'comments in the place of empty lines': (
        lines('{word} {tag}', before='# s{n}\n', between=''), '2 lines that begin with #'),
    'comments of other columns': (
        lines('{word} {tag}', before='# sent_id = {n}\n# text = so\n'),
        '4 lines that begin with #, such as line 1, are read as comments'),
    'comments of as many columns': (
        lines('{word} _ _ {tag}', before='# id {n} domain=train\n'), '2 lines that begin with #'),
    'comments of CoNLL-2012': (
        '#begin document (a); part 000\n' + lines('{word} NN {tag}') + '\n#end document\n',
        'such as line 1,'),
}


@pytest.mark.parametrize('name', READ)
def test_words_and_tags_are_found(name, tmp_path, capsys):
    text, said = READ[name]
    tagged = read_tagged(put(tmp_path, 'own.txt', text))
    assert [(s.words, s.tags) for s in tagged.sentences] == SENTENCES
    out = capsys.readouterr().out
    assert said in out and bool(out) == bool(said)


@pytest.mark.parametrize(('text', 'words'), [
    ('#\tO\nin to\tO\n#a\tB-X\n', ['#', 'in to', '#a']),
    ('# #\n10 CD\nof IN\n', ['#', '10', 'of']),  # a pound, as in the Penn Treebank
    ('#a HT\nb NN\n\n#c HT\nd NN\n', ['#a', 'b', '#c', 'd']),
    ('# SYM\nwinning VBG\n\n# SYM\nlosing VBG\nof IN\n# SYM\n',
     ['#', 'winning', '#', 'losing', 'of', '#']),
    ('# SYM\nwinning VBG\n\n# SYM\nlosing VBG\n', ['#', 'winning', '#', 'losing']),
    ('# SYM\na DT\n# SYM\n', ['#', 'a', '#']),
    ('#a HT\n# SYM\nb NN\n\nc NN\n', ['#a', '#', 'b', 'c']),
    ('#a HT\nb NN\n# SYM\n', ['#a', 'b', '#']),
    ('#a Case=Nom\nb Case=Gen\n', ['#a', 'b']),
    ('Text NE\nund KON\nRom NE\n', ['Text', 'und', 'Rom']),  # a name in the tags of German's STTS
    # Words that are numbers, and a word that is said again.
    ('1999 DATE\n\n42 CARD\n\n10115 ZIP\n\n7 CARD\n', ['1999', '42', '10115', '7']),
    ('1999 CD O\n\n42 CD O\n\n10115 CD B-ZIP\n\n7 CD O\n', ['1999', '42', '10115', '7']),
    ('0 O\n0 B-N\n1 I-N\n1 I-N\n2 I-N\n', ['0', '0', '1', '1', '2']),
    ('ha UH\n' * 12, ['ha'] * 12),
    ('The O\n\r O\nend O\n', ['The', '\r', 'end']),
    ('The O\n\ufeff O\nman B-PER\n\n\ufeffJohn B-PER\n', ['The', '\ufeff', 'man', 'John']),
])
def test_words_may_be_odd(text, words, tmp_path, capsys):
    tagged = read_tagged(put(tmp_path, 'own.txt', text))
    assert [word for s in tagged.sentences for word in s.words] == words
    assert not capsys.readouterr().out


NUMBERS = 'its first column numbers words or sentences'


@pytest.mark.parametrize(('text', 'message'), [
    (lines('{i}\t{word}\t{tag}'), NUMBERS),
    (lines('{i}\t{word}\t{tag}\tO', before='#\thttp://a [2009]\n'), NUMBERS),  # GermEval 2014
    ('sentence_id\tword\ttag\n' + lines('{n}\t{word}\t{tag}', between=''), NUMBERS),
    (lines('{i}\t{word}\t_\tNN\t_\t_\t0\troot\t_\t_', before='# text = a\n'),
     'is called NAME.conllu'),
    (lines('bc/a 0 {i} {word} {tag}') * 2, "such as 'bc/a'"),
    ('\n'.join(lines(f'bc/{document} 0 {{i}} {{word}} {{tag}}') for document in 'ab'),
     'its first column is the same in all lines of a sentence'),
    (lines('{i} {word} {tag}', between=''), NUMBERS),
    ('tag\tword\n' + lines('{tag}\t{word}'), 'is a header of tags and words'),
    ('id\ttoken\tgold\n' + lines('{i}\t{word}\t{tag}'), NUMBERS),
    ('-DOCSTART- -X- O\n\n' + lines('{i} {word} {tag}'), NUMBERS),
    ('-DOCSTART- O\n\n' + lines('{tag} {word}'), 'its lines begin with tags such as'),
    (lines('{tag}\t{word}'), 'its lines begin with tags such as I-PER'),
    (lines('de:{word}\t{tag}'), "all of its words begin with 'de:'"),
    ('\n'.join([lines('{word} {tag} _')] * 2), "its last column is '_' in all lines"),
    (lines('{word} {tag}').replace('\n', '\r').replace('\r', '\n', 1), 'line 2 holds a lone CR'),
    ('the 1\nlead 2\n##er -100\n', 'line 3 has -100, which stands for tokens without a tag'),
], ids=['numbers', 'GermEval', 'sentences', 'CoNLL-U', 'CoNLL-2012', 'two documents',
        'no empty lines', 'a header of tags first', 'names of its own', 'a mark',
        'a mark, tags first', 'tags first', 'WikiANN', 'nothing in the place of tags',
        'CR line ends but for one', 'tags of pieces'])
def test_what_stands_in_the_place_of_words_is_refused(text, message, tmp_path):
    with refused(message):
        read_tagged(put(tmp_path, 'own.txt', text))


def test_a_column_of_entities_that_is_not_read_is_said(tmp_path, capsys):
    path = put(tmp_path, 'own.txt', lines('{word} {tag} {i}.5'))
    assert read_tagged(path).tags[:2] == ['0.5', '1.5']
    assert f"{path}: the tags are those of its last column, such as '1.5'; column 2 has " in (
        capsys.readouterr().out)
    read_tagged(put(tmp_path, 'other.txt', lines('{word} O {tag}')))
    assert 'last column' not in capsys.readouterr().out


@pytest.mark.parametrize('mark', [
    '-DOCSTART- O', '-DOCSTART-', '-docstart- O', '-DOCSTART-(1) O', '-DOCSTART-X-O O',
    '-DOCSTART-\tO'])
def test_documents_begin_at_their_marks(mark, tmp_path):
    text = lines('{word} {tag}', before=f'{mark}\n\n')
    tagged = read_tagged(put(tmp_path, 'own.txt', text))
    assert tagged.documents == [words for words, _ in SENTENCES]


@pytest.mark.parametrize('text', [
    lines('{word},{tag}'), 'Sentence #,Word,Tag\n' + lines('Sentence: {n},{word},{tag}')])
def test_commas_do_not_separate_columns(text, tmp_path):
    with refused('commas separate its columns', 'JSON lines'):
        read_tagged(put(tmp_path, 'own.csv', text))
    spaces = lines('{word} {tag}')
    assert read_tagged(put(tmp_path, 'spaces.csv', spaces)).tags[:2] == ['B-PER', 'I-PER']


def test_a_line_without_a_word_is_malformed(tmp_path, capsys):
    text = 'in to\tO\n' * 3 + '\tO\n'
    assert len(read_tagged(put(tmp_path, 'own.txt', text)).tags) == 3
    assert 'line 4: no word before its first TAB; left out' in capsys.readouterr().err
