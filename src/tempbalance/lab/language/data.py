"""Load texts as token numbers: Penn Treebank, Python's own help or a user's files, as words or characters."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tempbalance.errors import unknown
from tempbalance.lab.download import fetch, remote_data

DATASETS = ("penn_treebank", "pydoc")
TOKENS = ("words", "characters")
PARTS = ("train", "valid", "test")
UNKNOWN, END = "<unk>", "<eos>"
MIN_COUNT = 3  # tokens that training has less often are <unk>; of Penn Treebank it has each more often

PENN_TREEBANK = remote_data()["penn_treebank"].files

_WORD = re.compile(r"<\w+>|\w+|[^\w\s]")
_RULER = re.compile(r"[*=\-~^+|\s]{3,}")  # the line under a heading, or of a table
_NO_TEXT = (".bin", ".npy", ".npz", ".json", ".jsonl", ".pt", ".pkl", ".parquet", ".arrow", ".idx")


@dataclass(frozen=True, eq=False)
class TextData:
    """A text in three parts, each token as its index in the vocabulary.

    The vocabulary is ``<unk>``, then all tokens of the training part except rare ones, the most frequent first.
    """

    name: str
    vocabulary: tuple[str, ...]
    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    def digest(self) -> str:
        """Return a checksum of vocabulary and tokens."""
        found = hashlib.sha256("\0".join(self.vocabulary).encode())
        for part in PARTS:
            array: NDArray[Any] = getattr(self, part)
            found.update(f"{part} {array.shape} ".encode())
            found.update(array.tobytes())
        return found.hexdigest()


def load_text(
    name_or_path: str, *, tokens: str = "words", vocabulary: int | None = None, cache: Path | None = None
) -> TextData:
    """Load a known text, a text file or a folder of three.

    Of a UTF-8 file the first 80 % are for training, the next 10 % for validation and the rest for the test. A folder
    has ``train.txt`` or one ``*.train.txt``, and the same for ``valid`` and ``test``; files called ``ptb.*.txt`` must
    be those of Penn Treebank, in which white space parts words. A vocabulary keeps this many of the most frequent
    tokens, ``<unk>`` among them.
    """
    if tokens not in TOKENS:
        raise ValueError(unknown("tokens", tokens, TOKENS))
    check_text(name_or_path)
    path = Path(name_or_path).expanduser()
    if name_or_path == "penn_treebank":
        paths, name = [fetch(file, cache=cache) for file in PENN_TREEBANK], name_or_path
    elif name_or_path == "pydoc":
        paths, name = [], name_or_path
    else:
        paths, name = (find_parts(path), path.name) if path.is_dir() else ([path], path.stem)
    split = list if tokens == "characters" else parted_words if _is_penn_treebank(paths) else words
    parts = [split(_read(each)) for each in paths] or [split(_pydoc())]
    where = [str(each) for each in paths] or ["pydoc_data.topics"]
    if len(parts) == 1:
        bounds = [len(parts[0]) * share // 10 for share in (0, 8, 9, 10)]
        parts = [parts[0][bounds[each] : bounds[each + 1]] for each in range(3)]
        where = [f"{where[0]}, {part} part" for part in PARTS]
    data = _numbered(name, parts, where)
    if vocabulary is None or vocabulary >= len(data.vocabulary):
        return data
    kept = {part: getattr(data, part) * (getattr(data, part) < vocabulary) for part in PARTS}  # 0 is <unk>
    return replace(data, vocabulary=data.vocabulary[:vocabulary], **kept)


def check_text(name_or_path: str) -> None:
    """Raise ValueError if a text is neither known nor a file or folder."""
    if name_or_path not in DATASETS and not Path(name_or_path).expanduser().exists():
        raise ValueError(
            f"{unknown('dataset', name_or_path, DATASETS)}; or the path of a text file or of a folder with train, "
            "valid and test texts, and there is none"
        )


def count_steps(num_tokens: int, *, batch_size: int, sequence: int, name: str) -> int:
    """Return the batches in a pass through a training part, from any of the first ``sequence`` tokens."""
    num_steps = (num_tokens - sequence) // (batch_size * sequence)
    if num_steps < 1:
        raise ValueError(
            f"{name}: the training part must have at least {sequence * (batch_size + 1)} tokens, for one batch of "
            f"{batch_size} sequences of {sequence} wherever it begins, got {num_tokens}"
        )
    return num_steps


def words(text: str) -> list[str]:
    r"""Split a text into words and punctuation marks, with ``<eos>`` after every line that is not empty.

    Example:
        >>> words("Is it?\n\nIt is <unk>.")
        ['Is', 'it', '?', '<eos>', 'It', 'is', '<unk>', '.', '<eos>']
    """
    return [token for line in text.split("\n") if (found := _WORD.findall(line)) for token in (*found, END)]


def parted_words(text: str) -> list[str]:
    """Split a text at white space, with ``<eos>`` after every line that is not empty."""
    return [token for line in text.split("\n") if (found := line.split()) for token in (*found, END)]


def find_parts(folder: Path) -> list[Path]:
    """Return the training, validation and test text in a folder."""
    paths = []
    for part in PARTS:
        found = sorted({*folder.glob(f"{part}.txt"), *folder.glob(f"*.{part}.txt")})
        if len(found) != 1:
            got = ", ".join(each.name for each in found) or "none"
            raise ValueError(f"{folder}: must have one {part}.txt or *.{part}.txt, got {got}")
        paths += found
    if _is_penn_treebank(paths):
        for path, file in zip(paths, PENN_TREEBANK, strict=True):
            if (got := hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()) != file.md5:
                raise ValueError(f"{path}: must be that of Penn Treebank, with MD5 {file.md5}, got {got}")
    return paths


def _is_penn_treebank(paths: Sequence[Path]) -> bool:
    return [path.name for path in paths] == [Path(file.name).name for file in PENN_TREEBANK]


def _read(path: Path) -> str:
    """Return the text of a file; refuse an empty one."""
    if path.suffix.lower() in _NO_TEXT:
        raise ValueError(f"{path}: must be a text, not a file of tokens or arrays, got one that ends in {path.suffix}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise ValueError(f"{path}: must be UTF-8 text, got byte 0x{err.object[err.start]:02x} at {err.start}") from err
    if "\0" in text:
        raise ValueError(f"{path}: must be UTF-8 text, got a zero byte at {text.index(chr(0))}")
    if not text.strip():
        raise ValueError(f"{path}: must have text in it, got {len(text)} characters of white space")
    return text.replace("\r\n", "\n")


def _pydoc() -> str:
    """The topics in the order of their names, with neither lines under headings nor paragraphs that come again."""
    from pydoc_data.topics import topics

    paragraphs: dict[str, str] = {}
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            lines = [line.rstrip() for line in paragraph.split("\n") if not _RULER.fullmatch(line)]
            paragraphs.setdefault(" ".join(" ".join(lines).split()), "\n".join(lines))
    return "\n\n".join(text for words, text in paragraphs.items() if words)


def _numbered(name: str, parts: Sequence[Sequence[str]], where: Sequence[str]) -> TextData:
    """Number the tokens by the vocabulary of the first part; refuse a part without text, and mostly unknown tokens."""
    for part, place in zip(parts, where, strict=True):
        if len(part) < 2:
            raise ValueError(f"{place}: must have at least 2 tokens, got {len(part)}")
    counts = Counter(parts[0])
    known = sorted((each for each in counts if counts[each] >= MIN_COUNT), key=lambda each: (-counts[each], each))
    vocabulary = (UNKNOWN, *(each for each in known if each != UNKNOWN))
    num_known = sum(counts[each] for each in vocabulary)
    if 2 * num_known < len(parts[0]):
        raise ValueError(
            f"{where[0]}: at least half of its tokens must be seen {MIN_COUNT} times or more, got {num_known} of "
            f"{len(parts[0])}: it is too short, or its words are not parted by spaces; tokens: characters may do"
        )
    places = {token: place for place, token in enumerate(vocabulary)}
    train, valid, test = (np.array([places.get(token, 0) for token in part], dtype=np.int64) for part in parts)
    return TextData(name, vocabulary, train, valid, test)
