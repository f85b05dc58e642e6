"""Folders of checkpoints: on this machine, or by Hadoop's clients at any URI that Spark's file systems reach."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

#: The names of files that are not complete yet.
_UNFINISHED: Final = (".*.tmp*", "*.tmp")


class RemotePath:
    """A path on a file system of Hadoop, with the methods of `pathlib.Path` that checkpoints need.

    Args:
        uri: `SCHEME://AUTHORITY/PATH`.
        jvm: The view of py4j on Spark's Java process.
        settings: Hadoop's settings in that process.
    """

    def __init__(self, uri: str, jvm: Any, settings: Any) -> None:
        self._uri = uri.rstrip("/")
        self._jvm, self._settings = jvm, settings
        self.java = jvm.org.apache.hadoop.fs.Path(self._uri)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._uri.rpartition("/")[2]

    @property
    def system(self) -> Any:
        """The file system of the scheme."""
        with _as_os_error(self._uri):
            return self.java.getFileSystem(self._settings)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self._uri}/{name}", self._jvm, self._settings)

    def __str__(self) -> str:
        return self._uri

    def as_uri(self) -> str:
        """Return the URI."""
        return self._uri

    def with_name(self, name: str) -> RemotePath:
        """Return the path of another entry of the same folder."""
        return RemotePath(f"{self._uri.rpartition('/')[0]}/{name}", self._jvm, self._settings)

    def exists(self) -> bool:
        """Return whether the entry exists."""
        with _as_os_error(self._uri):
            return bool(self.system.exists(self.java))

    def is_dir(self) -> bool:
        """Return whether it is a folder."""
        return self.exists() and bool(self.system.getFileStatus(self.java).isDirectory())

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yield the entries of this folder whose names match; none if the folder does not exist."""
        if not self.is_dir():
            return
        with _as_os_error(self._uri):
            found = [str(one.getPath().getName()) for one in self.system.listStatus(self.java)]
        yield from (self / name for name in sorted(found) if fnmatch(name, pattern))

    def read_text(self) -> str:
        """Return the content of the file."""
        with _as_os_error(self._uri):
            stream = self.system.open(self.java)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write_text(self, text: str) -> None:
        """Write the file; replace an existing one."""
        with _as_os_error(self._uri):
            stream = self.system.create(self.java, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with _as_os_error(self._uri):
            if not self.system.delete(self.java, False) and not missing_ok:
                raise FileNotFoundError(self._uri)


Folder = Path | RemotePath


def local_path(place: str) -> Path | None:
    """Return the path of a folder of this machine, given with or without `file:`; `None` for another URI.

    Raises:
        ValueError: a `file:` URI names another host.
    """
    url = urlsplit(place)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost"):
            raise ValueError(f"{place} names the host {url.netloc!r}, and a file is on this one; write file:///…")
        return Path(unquote(url.path))
    return None if url.scheme else Path(place).absolute()


def copy_folder(source: Folder, place: Folder) -> None:
    """Copy the contents of a folder, except for incomplete files, to *place*, which is created if necessary.

    Raises:
        FileNotFoundError: a file was removed meanwhile.
    """
    if isinstance(source, Path) and isinstance(place, Path):
        shutil.copytree(source, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_UNFINISHED))
        return
    remote = source if isinstance(source, RemotePath) else place
    assert isinstance(remote, RemotePath)
    _copy(_remote(source, remote), _remote(place, remote), remote)


def remove_folder(place: Folder) -> None:
    """Remove a folder with its contents, if it exists."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    elif place.exists():
        place.system.delete(place.java, True)


def _copy(source: RemotePath, place: RemotePath, by: RemotePath) -> None:
    with _as_os_error(str(source)):
        place.system.mkdirs(place.java)
        for one in source.system.listStatus(source.java):
            name = str(one.getPath().getName())
            if one.isDirectory():
                _copy(source / name, place / name, by)
            elif not any(fnmatch(name, pattern) for pattern in _UNFINISHED):
                of, to = source / name, place / name
                copy = by._jvm.org.apache.hadoop.fs.FileUtil.copy
                copy(of.system, of.java, to.system, to.java, False, True, by._settings)


def _remote(path: Folder, like: RemotePath) -> RemotePath:
    if isinstance(path, RemotePath):
        return path
    return RemotePath(path.absolute().as_uri(), like._jvm, like._settings)


@contextmanager
def _as_os_error(place: str) -> Iterator[None]:
    """Raise exceptions of a Hadoop file system as `OSError`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise OSError(f"{place}: {error}") from error
    except Py4JJavaError as error:
        kind = str(error.java_exception.getClass().getSimpleName())
        text = f"{place}: {error.java_exception.getMessage()}"
        raise (FileNotFoundError(text) if kind == "FileNotFoundException" else OSError(f"{kind}: {text}")) from error
