import io
import os
import socket
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from urllib3.response import HTTPResponse

from tempbalance.lab import download
from tempbalance.lab.download import ATTEMPTS, CHUNK, DownloadError, RemoteFile, cache_folder, fetch, read_archive
from tests.cases import raises

CONTENT = np.random.default_rng(0).bytes(64 * CHUNK)
HALF = 32 * CHUNK


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT in the way that its path says: ``/ok``, ``/error``, ..."""

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        first = asked is None
        offset = 0 if first else int(asked.removeprefix("bytes=").removesuffix("-"))
        way = self.path.strip("/")
        if way == "error":
            self.send_error(500)
        elif way == "wrong":
            self.answer(200, b"x" * 1000)
        elif way == "without-range":
            self.answer(200, CONTENT, keep=HALF if len(self.server.requests) == 1 else None)
        elif way == "other-range" and not first:
            self.answer(206, CONTENT[:100], offset=0)
        elif offset >= len(CONTENT):
            self.send_error(416)
        elif way == "drip":
            self.answer(206 if offset else 200, CONTENT[offset:], offset=offset, keep=CHUNK)
        elif way == "truncated" and first:
            self.answer(200, CONTENT, keep=HALF)
        elif way == "reset" and first:
            self.answer(200, CONTENT, keep=HALF)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.answer(206 if offset else 200, CONTENT[offset:], offset=offset)

    def answer(self, status: int, body: bytes, *, offset: int = 0, keep: int | None = None) -> None:
        """Announce a body and send it, or only what to keep of it."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {offset}-{offset + len(body) - 1}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(body[:keep])
        self.wfile.flush()

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Remembers its requests: path and Range header."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None]] = []

    def handle_error(self, *args: object) -> None:
        """A connection that is reset on purpose is no news."""

    def file(self, *ways: str, content: bytes = CONTENT) -> RemoteFile:
        urls = tuple(f"http://127.0.0.1:{self.server_port}/{way}" for way in ways)
        return RemoteFile("some/file.bin", urls, md5(content).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def write_part(cache: Path, content: bytes) -> None:
    (cache / "some").mkdir()
    (cache / "some" / "file.bin.part").write_bytes(content)


def test_a_file_is_downloaded_once_and_then_found_in_the_cache(server, tmp_path, capfd):
    path = fetch(server.file("ok"), cache=tmp_path)
    assert path == tmp_path / "some" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert files_in(tmp_path) == ["file.bin"]
    assert "1.0/1.0 MB" in capfd.readouterr().err
    assert fetch(server.file("ok"), cache=tmp_path) == path
    assert server.requests == [("/ok", None)]


def test_without_progress_there_is_no_bar(server, tmp_path, capfd):
    fetch(server.file("ok"), cache=tmp_path, progress=False)
    assert " MB" not in capfd.readouterr().err


@pytest.mark.parametrize("is_noticed_by_urllib3", [True, False])  # as from its version 2 on
def test_a_truncated_body_is_resumed_where_it_ended(server, tmp_path, monkeypatch, is_noticed_by_urllib3):
    if not is_noticed_by_urllib3:
        never = property(lambda self: False, lambda self, value: None)
        monkeypatch.setattr(HTTPResponse, "enforce_content_length", never, raising=False)
    assert fetch(server.file("truncated"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/truncated", None), ("/truncated", f"bytes={HALF}-")]
    assert files_in(tmp_path) == ["file.bin"]


def test_a_connection_that_is_cut_is_resumed(server, tmp_path):
    assert fetch(server.file("reset", "ok"), cache=tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 2
    assert files_in(tmp_path) == ["file.bin"]


def test_what_an_earlier_call_left_is_not_downloaded_again(server, tmp_path):
    write_part(tmp_path, CONTENT[:300_000])
    assert fetch(server.file("ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/ok", "bytes=300000-")]


def test_a_server_without_ranges_starts_again(server, tmp_path):
    assert fetch(server.file("without-range"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/without-range", None), ("/without-range", f"bytes={HALF}-")]


def test_a_server_that_sends_another_range_than_asked_for_starts_again(server, tmp_path):
    write_part(tmp_path, CONTENT[:HALF])
    assert fetch(server.file("other-range"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/other-range", f"bytes={HALF}-"), ("/other-range", None)]


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_part_that_leaves_nothing_to_ask_for_starts_again(server, tmp_path, extra):
    write_part(tmp_path, CONTENT + extra)
    assert fetch(server.file("ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/ok", None)


def test_a_part_with_other_bytes_starts_again(server, tmp_path):
    write_part(tmp_path, b"\0" * HALF)
    assert fetch(server.file("ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/ok", f"bytes={HALF}-"), ("/ok", None)]


def test_wrong_bytes_are_deleted_and_named_with_both_checksums(server, tmp_path):
    file = server.file("wrong")
    with pytest.raises(DownloadError) as caught:
        fetch(file, cache=tmp_path)
    for expected in ("some/file.bin", file.urls[0], file.md5, md5(b"x" * 1000).hexdigest()):
        assert expected in str(caught.value)
    assert files_in(tmp_path) == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("way", ["error", "wrong"])
def test_the_next_mirror_is_tried_when_one_fails(server, tmp_path, way):
    assert fetch(server.file(way, "ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [(f"/{way}", None), ("/ok", None)]


def test_a_mirror_goes_on_with_what_another_gave(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    assert fetch(server.file("truncated", "ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests == [("/truncated", None), ("/ok", f"bytes={HALF}-")]


def test_when_no_mirror_gives_the_file_the_error_tells_what_each_said(server, tmp_path):
    with socket.socket() as closed:  # a port that nobody listens on
        closed.bind(("127.0.0.1", 0))
        unreachable = f"http://127.0.0.1:{closed.getsockname()[1]}/ok"
        file = server.file("error", "wrong")
        with pytest.raises(DownloadError) as caught:
            fetch(RemoteFile(file.name, (*file.urls, unreachable), file.md5), cache=tmp_path)
    assert "\n" not in str(caught.value)
    error, wrong, closed_port = str(caught.value).split("; http://")
    assert "500" in error
    assert file.md5 in wrong
    assert closed_port.startswith(unreachable.removeprefix("http://"))


def test_a_server_that_always_cuts_is_given_up_and_a_later_call_goes_on(server, tmp_path):
    with raises(DownloadError, CHUNK * ATTEMPTS, tmp_path / "some" / "file.bin.part"):
        fetch(server.file("drip"), cache=tmp_path)
    assert len(server.requests) == ATTEMPTS
    assert fetch(server.file("ok"), cache=tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/ok", f"bytes={CHUNK * ATTEMPTS}-")


def test_a_damaged_file_in_the_cache_is_replaced(server, tmp_path):
    path = fetch(server.file("ok"), cache=tmp_path)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(server.file("ok"), cache=tmp_path).read_bytes() == CONTENT
    assert len(server.requests) == 2


def test_several_that_want_the_same_file_download_it_once(server, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch(server.file("truncated"), cache=tmp_path, progress=False), range(4)))
    assert [path.read_bytes() == CONTENT for path in paths] == [True] * 4
    assert len(server.requests) == 2


def test_the_cache_is_the_given_folder_or_the_variables_or_the_systems(tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPBALANCE_CACHE", str(tmp_path / "variable"))
    assert cache_folder(tmp_path / "given") == tmp_path / "given"
    assert cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("TEMPBALANCE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "system"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder().name == "tempbalance"
    assert tmp_path in cache_folder().parents


OUTSIDE = ["../outside.bin", "a/../../outside.bin", "/tmp/outside.bin", "..\\outside.bin", "C:\\outside.bin"]


def write_tar(path: Path, *members: tarfile.TarInfo | str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            info.size = 3 if info.isreg() else 0
            archive.addfile(info, io.BytesIO(b"abc"))
    return path


def write_zip(path: Path, *members: zipfile.ZipInfo | str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for member in members:
            archive.writestr(member, b"abc")
    return path


def linking(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("a/link.bin")
    info.type, info.linkname = kind, "../../outside.bin"
    return info


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_the_files_of_an_archive_that_match_are_read_and_nothing_is_written(tmp_path, write):
    archive = write(tmp_path / "archive", "b/2.bin", "b/1.bin", "b/readme.txt", "c/1.bin")
    assert list(read_archive(archive, "b/*.bin", "c/*").items()) == [
        ("b/1.bin", b"abc"),
        ("b/2.bin", b"abc"),
        ("c/1.bin", b"abc"),
    ]
    assert files_in(tmp_path) == ["archive"]


@pytest.mark.parametrize(
    ("write", "name"), [*((write_tar, name) for name in OUTSIDE), (write_zip, OUTSIDE[0]), (write_zip, OUTSIDE[2])]
)
def test_an_archive_with_a_member_outside_its_folder_is_refused_and_nothing_is_written(tmp_path, write, name):
    archive = write(tmp_path / "archive", "a/good.bin", name)
    with raises(ValueError, archive, "outside.bin'"):
        read_archive(archive, "a/*.bin")
    assert files_in(tmp_path) == ["archive"]
    assert not Path("/tmp/outside.bin").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_a_tar_archive_with_a_link_or_device_is_refused(tmp_path, kind):
    archive = write_tar(tmp_path / "archive", "a/good.bin", linking(kind))
    with raises(ValueError, archive, "'a/link.bin'"):
        read_archive(archive, "a/good.bin")
    assert files_in(tmp_path) == ["archive"]


def test_a_zip_archive_with_a_link_is_refused(tmp_path):
    link = zipfile.ZipInfo("a/link.bin")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive = write_zip(tmp_path / "archive", "a/good.bin", link)
    with raises(ValueError, archive, "'a/link.bin'"):
        read_archive(archive, "a/good.bin")
    assert files_in(tmp_path) == ["archive"]


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_truncated_archive_is_named(tmp_path, write):
    archive = write(tmp_path / "archive", "a/good.bin")
    archive.write_bytes(archive.read_bytes()[:60])
    with raises(ValueError, archive):
        read_archive(archive, "*")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_in_the_place_of_a_file_is_refused_and_no_checksum_computed(tmp_path, kind):
    (path,) = download.data_paths("cifar10", cache=tmp_path)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with raises(download.DownloadError, path, "regular"):
        download.fetch_data("cifar10", cache=tmp_path)


def test_datasets_have_sizes_licences_and_places(tmp_path):
    for name, data in download.remote_data().items():
        assert data.num_bytes > 1_000_000, name
        assert "(https://" in data.licence or "(http://" in data.licence, name  # where it is stated
        assert all(len(file.md5) == 32 and file.urls[0].endswith(Path(file.name).name) for file in data.files)
    (path,) = download.data_paths("cifar10", cache=tmp_path)
    assert path == tmp_path / "cifar-10-binary.tar.gz"
    assert not download.is_fetched("cifar10", cache=tmp_path)
    path.touch()
    assert download.is_fetched("cifar10", cache=tmp_path)
    with raises(ValueError, "'cifar1'", "'cifar10'"):
        download.fetch_data("cifar1")
