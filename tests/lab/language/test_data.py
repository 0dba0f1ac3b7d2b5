from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from tempbalance.lab.download import DownloadError, RemoteFile
from tempbalance.lab.language import data as module
from tempbalance.lab.language.data import END, PARTS, PENN_TREEBANK, UNKNOWN, TextData, load_text
from tests.cases import raises

LINE = "the cat sat on the mat .\n"


def write(folder: Path, **texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name.replace('_', '.')}.txt").write_text(text)
    return folder


def tokens(data: TextData, part: str) -> list[str]:
    return [data.vocabulary[number] for number in getattr(data, part)]


def test_a_file_is_cut_in_order_into_80_10_and_10_percent(tmp_path: Path) -> None:
    letters = "a" * 80 + "b" * 10 + "c" * 10
    (tmp_path / "own.txt").write_text(letters)
    data = load_text(str(tmp_path / "own.txt"), tokens="characters")
    assert [len(getattr(data, part)) for part in PARTS] == [80, 10, 10]
    assert data.vocabulary == (UNKNOWN, "a")
    assert tokens(data, "train") == ["a"] * 80
    assert tokens(data, "valid") == tokens(data, "test") == [UNKNOWN] * 10


def test_words_and_signs_are_tokens_and_lines_end_in_eos(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", train=3 * "It's <unk> here.\n\n", valid="It here\n", test="It there\n")
    data = load_text(str(folder))
    assert tokens(data, "train") == ["It", "'", "s", UNKNOWN, "here", ".", END] * 3
    assert tokens(data, "valid") == ["It", "here", END]
    assert tokens(data, "test") == ["It", UNKNOWN, END]


def test_the_vocabulary_is_of_training_alone_and_without_rare_words(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", a_train="b b b b a a a rare rare\n" * 1, a_valid="new " * 9, a_test="b new")
    data = load_text(str(folder))
    assert data.vocabulary == (UNKNOWN, "b", "a")
    assert tokens(data, "train")[-3:] == [UNKNOWN, UNKNOWN, UNKNOWN]  # two rare ones, and one <eos> is rare too


def test_the_digest_tells_texts_and_tokens_apart(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINE * 10)
    (tmp_path / "b.txt").write_text(LINE * 10)
    (tmp_path / "c.txt").write_text(LINE * 9 + LINE.replace("cat", "mat"))
    first, same, other = (load_text(str(tmp_path / f"{name}.txt")).digest() for name in "abc")
    assert first == same != other
    assert load_text(str(tmp_path / "a.txt"), tokens="characters").digest() != first


@pytest.mark.parametrize("tokens", module.TOKENS)
def test_pythons_help_is_always_there_and_no_paragraph_comes_twice(tokens: str) -> None:
    data = load_text("pydoc", tokens=tokens)
    assert len(data.train) > 50_000
    assert 50 < len(data.vocabulary) < 3_000
    assert np.mean(data.test == 0) < 0.1  # few unknown
    paragraphs = [" ".join(each.split()) for each in module._pydoc().split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)


@pytest.mark.parametrize(
    ("content", "name", "carried"),
    [
        (b"", "own.txt", ["own.txt", 0]),
        (b" \n\n", "own.txt", ["own.txt", 3]),
        (b"abc \xff", "own.txt", ["own.txt", "UTF-8", "0xff at 4"]),
        (b"abc\0def", "own.txt", ["own.txt", "UTF-8", "zero byte at 3"]),
        (b"[1, 2, 3]", "own.json", ["own.json"]),
        (b"12345678", "own.bin", ["own.bin"]),
        (b"\x93NUMPY", "own.npy", ["own.npy"]),
        (b"one two", "own.txt", ["own.txt", "valid", 2, 0]),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_name(
    tmp_path: Path, content: bytes, name: str, carried: list[object]
) -> None:
    (tmp_path / name).write_bytes(content)
    with raises(ValueError, *carried):
        load_text(str(tmp_path / name))


def test_a_missing_file_and_an_unknown_name_are_refused() -> None:
    with raises(ValueError, "dataset", "'penn_treebnk'", "'penn_treebank'"):
        load_text("penn_treebnk")
    with raises(ValueError, "dataset", "'no/such.txt'", "penn_treebank", "pydoc"):
        load_text("no/such.txt")
    with raises(ValueError, "tokens", "'letters'"):
        load_text("pydoc", tokens="letters")


def test_a_folder_that_lacks_a_part_or_has_two_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "own", train=LINE, valid=LINE)
    with raises(ValueError, folder, "test.txt", "*.test.txt"):
        load_text(str(folder))
    write(folder, test=LINE, other_test=LINE)
    with raises(ValueError, folder, "other.test.txt, test.txt"):
        load_text(str(folder))


def test_files_called_as_penn_treebanks_must_be_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path / "ptb", ptb_train=LINE, ptb_valid=LINE, ptb_test=LINE)
    got = md5(LINE.encode()).hexdigest()
    with raises(ValueError, "ptb.train.txt", PENN_TREEBANK[0].md5, got):
        load_text(str(folder))


def test_penn_treebank_comes_from_the_cache_parted_by_white_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fake_fetch(file: RemoteFile, *, cache: Path) -> Path:
        asked.append(file)
        path = cache / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" mr. n't <unk> N\n" * 3)
        return path

    monkeypatch.setattr(module, "fetch", fake_fetch)
    data = load_text("penn_treebank", cache=tmp_path)
    assert asked == list(PENN_TREEBANK)
    assert tokens(data, "test") == ["mr.", "n't", UNKNOWN, "N", END] * 3
    assert len(load_text("penn_treebank", tokens="characters", cache=tmp_path).test) == 3 * 17


def test_penn_treebank_that_cannot_be_had_says_where_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "http://127.0.0.1:9/ptb.train.txt"  # where nothing answers
    file = RemoteFile(PENN_TREEBANK[0].name, (address,), PENN_TREEBANK[0].md5)
    monkeypatch.setattr(module, "PENN_TREEBANK", (file,))
    with raises(DownloadError, "penn_treebank/ptb.train.txt", address):
        load_text("penn_treebank", cache=tmp_path)


def test_a_text_of_which_most_words_would_be_unknown_is_refused(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"word{number}" for number in range(5000)))
    with raises(ValueError, path, "3 times", "0 of 4000", "tokens: characters"):
        load_text(str(path), tokens="words")
    assert len(load_text(str(path), tokens="characters").vocabulary) > 10
