"""A folder on any file system that fsspec knows: listed, read, written with retries and checks."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import fsspec

from specforge_dstill.checksums import sha256_of
from specforge_dstill.errors import UserError, reason
from specforge_dstill.files import make_folder, remove_quietly, temporary_path
from specforge_dstill.trajectory_store.checksums import server_confirms

T = TypeVar("T")

# Seconds between tries, beside what the file system tries itself. Long enough for the restart of a
# gateway; the same command can always be run again.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_FINAL = (FileNotFoundError, PermissionError, NotImplementedError)
# Their packages may not be here, so they are known by name.
_NO_CREDENTIALS = {
    "NoCredentialsError",  # botocore's
    "PartialCredentialsError",
    "ProfileNotFound",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "DefaultCredentialsError",  # google.auth's
    "RefreshError",
    "ClientAuthenticationError",  # azure's
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or gcloud auth application-default login",
    "hf": "HF_TOKEN, or hf auth login",
}
_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class RemoteFolder:
    """One folder elsewhere.

    Every error of the storage becomes a ``UserError`` of one line that names the file, after what
    may pass has been tried several times.

    Attributes:
        uri: as the user named it, without a slash at its end.
        fs: the fsspec file system.
        root: the folder's name in it.
    """

    uri: str
    fs: Any
    root: str

    @classmethod
    def at(cls, uri: str) -> RemoteFolder:
        """The folder that ``uri`` names, which need not exist.

        Raises: ``UserError`` for an unknown scheme, a missing package or missing credentials.
        """
        try:
            fs, root = fsspec.url_to_fs(uri)
        except ImportError as error:
            raise UserError(f"{uri} needs a package that is not here: {reason(error)}") from error
        except Exception as error:
            raise UserError(f"{uri} cannot be used: {reason(error)}") from error
        return cls(uri.rstrip("/"), fs, root.rstrip("/"))

    @property
    def innermost(self) -> Any:
        """The file system that keeps the files, beneath those that only cache it (``a::b://``)."""
        fs = self.fs
        while getattr(fs, "fs", None) is not None:
            fs = fs.fs
        return fs

    def sizes(self) -> dict[str, int]:
        """Name and bytes of every file in the folder, by one listing; empty when it is absent."""

        def listing() -> dict[str, int]:
            self.fs.invalidate_cache()
            try:
                found = self.fs.ls(self.root, detail=True)
            except FileNotFoundError:
                return {}
            return {
                item["name"].rstrip("/").rpartition("/")[2]: int(item["size"])
                for item in found
                if item["type"] == "file"
            }

        return self._tried("listed", "", listing)

    def names(self) -> list[str]:
        """Of every file in the folder."""
        return list(self.sizes())

    def place(self, name: str) -> str:
        """A file's URI."""
        return f"{self.uri}/{name}"

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

        def gone() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(self._key(name))

        self._tried("removed", name, gone)

    def read(self, name: str) -> bytes | None:
        """A small file's content; None when there is none."""

        def content() -> bytes | None:
            try:
                data: bytes = self.fs.cat_file(self._key(name))
            except FileNotFoundError:
                return None
            return data

        return self._tried("read", name, content)

    def read_all(self, names: Sequence[str]) -> dict[str, bytes]:
        """Small files' content, many at a time where the file system can."""
        if not names:
            return {}
        keys = {self._key(name): name for name in names}

        def contents() -> dict[str, bytes]:
            found: dict[str, bytes] = self.fs.cat(list(keys), on_error="raise", recursive=False)
            return {name: found[key] for key, name in keys.items()}

        return self._tried("read", names[0], contents)

    def upload(self, path: Path, name: str, sha256: str) -> str:
        """Put a local file in the folder under ``name``, and make sure that it arrived whole.

        Size and checksum are asked of the server. Where it tells no checksum that we know (or
        tells another, as S3 does for large or encrypted objects), the file is read back.

        Args:
            sha256: of the file, hex.

        Returns the file's URI.
        """

        def put() -> None:
            self.fs.put_file(str(path), self._key(name))
            self.fs.invalidate_cache()
            info = self.fs.info(self._key(name))
            size = path.stat().st_size
            if info["size"] != size:
                raise OSError(f"{info['size']} bytes arrived instead of {size}")
            if not server_confirms(info, path, sha256) and self._sha256(name) != sha256:
                raise OSError("what arrived does not match its checksum")

        self._tried("written", name, put)
        return self.place(name)

    def write(self, name: str, content: bytes) -> None:
        """Put a file of this content in the folder, as :meth:`upload` does."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            self.upload(path, name, hashlib.sha256(content).hexdigest())

    def download(self, name: str, path: Path, sha256: str) -> None:
        """Fetch a file to ``path``, whole and matching its checksum, or not at all.

        Several processes may do so at once: each writes under a name of its own and renames.
        """
        make_folder(path.parent)
        temporary = temporary_path(path)

        def get() -> None:
            self.fs.get_file(self._key(name), str(temporary))
            if sha256_of(temporary) != sha256:
                raise OSError("it does not match its checksum")
            temporary.replace(path)

        try:
            self._tried("fetched", name, get)
        finally:
            remove_quietly(temporary)

    def _key(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _sha256(self, name: str) -> str:
        digest = hashlib.sha256()
        with self.fs.open(self._key(name), "rb") as file:
            while piece := file.read(_READ_BYTES):
                digest.update(piece)
        return digest.hexdigest()

    def _tried(self, done: str, name: str, action: Callable[[], T]) -> T:
        place = f"{self.uri}/{name}" if name else self.uri
        try:
            return retried(action)
        except Exception as error:
            if _lacks_rights(error):
                problem, then = "cannot be reached", f"{self._credentials()} or check the bucket"
            elif isinstance(error, _FINAL):
                problem, then = f"cannot be {done}", "check its name and your rights to it"
            else:
                problem, then = f"cannot be {done}", "run the same command again"
                if done == "written":
                    then = f"what was finished is kept, {then}"
            raise UserError(f"{place} {problem}: {reason(error)}; {then}") from error

    def _credentials(self) -> str:
        scheme = self.uri.partition("://")[0].rpartition("::")[2]
        how = _CREDENTIALS.get(scheme)
        return f"set the credentials of {scheme}" + (f" ({how})" if how else "")


def retried(action: Callable[[], T]) -> T:
    """Run ``action`` until it works, waiting longer and longer; raise its last error.

    What will not pass (no such file, no permission, no credentials) is raised at once.
    """
    for delay in DELAYS:
        try:
            return action()
        except Exception as error:  # each file system has errors of its own
            if isinstance(error, _FINAL) or _lacks_rights(error):
                raise
            time.sleep(delay)
    return action()


def _lacks_rights(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, PermissionError) or not names.isdisjoint(_NO_CREDENTIALS)
