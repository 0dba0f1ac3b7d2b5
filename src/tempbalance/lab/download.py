"""Download files once into a cache and check them; read archives without unpacking them."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from tempbalance.errors import unknown

if TYPE_CHECKING:
    from requests import Response

ATTEMPTS = 5  # for one address, while bytes arrive
TIMEOUT = (10, 60)  # seconds to connect, and without a byte
LOCK_TIMEOUT = 3600  # seconds to wait for another process that downloads the same file
CHUNK = 1 << 14  # bytes, at most lost when a connection breaks


class DownloadError(OSError):
    """A file could not be downloaded from any of its addresses."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download: its path inside the cache folder, and addresses in the order in which they are tried.

    A file that is executed has ``sha256`` in place of ``md5``.
    """

    name: str
    urls: tuple[str, ...]
    md5: str = ""
    sha256: str = ""

    @property
    def checksum(self) -> str:
        """The checksum as pooch takes it."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"


@dataclass(frozen=True)
class RemoteData:
    """A dataset to download; ``num_bytes`` counts the decoded form too if the cache folder keeps one."""

    files: tuple[RemoteFile, ...]
    licence: str
    num_bytes: int


@cache
def remote_data() -> dict[str, RemoteData]:
    """Return the downloadable datasets by name."""
    import yaml  # type: ignore[import-untyped]

    found = {}
    content = yaml.safe_load(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
    for name, data in content.items():
        files = tuple(
            RemoteFile(str(Path(data.get("folder", "")) / file), tuple(url + file for url in data["urls"]), md5)
            for file, md5 in data["files"].items()
        )
        found[name] = RemoteData(files, data["licence"], data["num_bytes"] + data.get("decoded", 0))
    return found


def find_data(name: str) -> RemoteData:
    """Return a downloadable dataset; raise ValueError with the closest name if it is unknown."""
    if name not in remote_data():
        raise ValueError(unknown("dataset", name, remote_data()))
    return remote_data()[name]


def data_paths(name: str, *, cache: Path | None = None) -> list[Path]:
    """Return the paths of a dataset's files in the cache folder, whether downloaded or not."""
    return [cache_folder(cache) / file.name for file in find_data(name).files]


def is_fetched(name: str, *, cache: Path | None = None) -> bool:
    """Whether the cache folder has all files of a dataset; loading compares the checksums."""
    return all(path.is_file() for path in data_paths(name, cache=cache))


def fetch_data(name: str, *, cache: Path | None = None, progress: bool = True) -> list[Path]:
    """Download the files of a dataset that the cache folder lacks, and return their paths."""
    return [fetch(file, cache=cache, progress=progress) for file in find_data(name).files]


def cache_folder(cache: Path | None = None) -> Path:
    """Return the cache folder: ``cache``, else ``$TEMPBALANCE_CACHE``, else the system's cache folder."""
    if cache is None and (setting := os.environ.get("TEMPBALANCE_CACHE")):
        cache = Path(setting)
    if cache is None:
        import pooch  # type: ignore[import-untyped]

        cache = Path(pooch.os_cache("tempbalance"))
    return cache.expanduser().absolute()


def fetch(file: RemoteFile, *, cache: Path | None = None, progress: bool = True) -> Path:
    """Download a file if the cache lacks it, and return its path.

    Bytes are collected in ``<name>.part``. An interrupted download resumes from there if the server supports it, and
    otherwise starts again. The file gets its name only if its checksum is right; wrong bytes are deleted. Other
    processes that need the same file wait.
    """
    import pooch
    from filelock import FileLock
    from requests import RequestException

    path = cache_folder(cache) / file.name
    check_regular(path)
    if path.is_file() and pooch.hashes.hash_matches(str(path), file.checksum):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    retrieve = partial(
        pooch.retrieve,
        known_hash=file.checksum,
        fname=path.name,
        path=path.parent,
        downloader=partial(_download, part=part, progress=progress),
    )
    pooch.get_logger().setLevel("WARNING")
    failures = []
    with FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT):
        for url in file.urls:
            for _ in range(ATTEMPTS):
                before = _size(part)
                try:
                    return Path(retrieve(url))
                except RequestException as err:
                    failures.append(f"{url}: {err}")
                    again = _size(part) > before
                except ValueError as err:  # pooch's: the checksum is wrong, both are in its message
                    failures.append(f"{url}: {err}")
                    again = before > 0  # the earlier bytes may be wrong
                if not again:
                    break
    kept = f"; the {_size(part)} bytes in {part} are kept, and the next call resumes from there" if _size(part) else ""
    raise DownloadError(f"{file.name} could not be downloaded to {path.parent}{kept}: {'; '.join(failures)}")


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device in the place of a file: computing its checksum would never end."""
    if path.exists() and not path.is_file():
        raise DownloadError(f"{path} must be a regular file, or missing")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _download(url: str, output_file: str, _: object, *, part: Path, progress: bool) -> None:
    """Download for pooch, resuming where the part file ends."""
    from requests import ConnectionError
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(part.stem), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with (
        _request(url, offset=_size(part)) as response,
        Progress(*columns, console=Console(stderr=True), disable=not progress) as bar,
    ):
        offset = _size(part) if response.status_code == 206 else 0
        length = response.headers.get("Content-Length")
        total = None if length is None else offset + int(length)
        task = bar.add_task("", total=total, completed=offset)
        with part.open("ab" if offset else "wb") as target:
            for chunk in response.iter_content(CHUNK):
                target.write(chunk)
                bar.advance(task, len(chunk))
    if total is not None and _size(part) != total:  # urllib3 notices from version 2 on
        raise ConnectionError(f"the connection ended after {_size(part)} of {total} bytes")
    part.replace(output_file)


def _request(url: str, *, offset: int) -> Response:
    """Request a file from an offset; status 206 if the response starts there, 200 if at the beginning."""
    import requests

    headers = {"Accept-Encoding": "identity"}  # no compression in transit
    if offset:
        headers["Range"] = f"bytes={offset}-"
    response = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
    if offset and response.status_code == 416:  # nothing is left to send, and yet the file was not complete
        response.close()
        return _request(url, offset=0)
    response.raise_for_status()
    return response


def read_archive(path: Path, *patterns: str) -> dict[str, bytes]:
    """Return the files in a tar or zip archive whose names match a pattern, sorted by name.

    Damaged archives, and those with a member that is a link or a device or lies outside the folder, are refused.
    """
    contents = {}
    try:
        for name, is_plain, read in _members(path):
            place = PureWindowsPath(name)  # takes both kinds of slashes, and drives
            if not is_plain or place.anchor or ".." in place.parts:
                raise ValueError(f"{path}: members must be files or folders inside the archive's folder, got {name!r}")
            if read is not None and any(fnmatchcase(name, pattern) for pattern in patterns):
                contents[name] = read()
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as err:
        raise ValueError(f"{path}: not a complete tar or zip archive: {err}") from err
    return dict(sorted(contents.items()))


def _members(path: Path) -> Iterator[tuple[str, bool, Callable[[], bytes] | None]]:
    """Yield each member's name, whether it is a file or a folder, and how to read a file."""
    if not zipfile.is_zipfile(path):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                yield member.name, member.isfile() or member.isdir(), None if file is None else file.read
        return
    with zipfile.ZipFile(path) as zipped:
        for entry in zipped.infolist():
            is_plain = stat.S_IFMT(entry.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            yield entry.filename, is_plain, None if entry.is_dir() else partial(zipped.read, entry)
