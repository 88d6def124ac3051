"""The cache of the Hugging Face hub's clients, read and written in their own layout, so that no byte lies there twice.

    CACHE/models--org--name/
        refs/REVISION                    the commit that a branch or a tag had when it was asked for
        blobs/ETAG                       bytes; the name is the sha256 of a large file, the git-sha1 of a small one
        blobs/ETAG.trims-partial         ours: bytes on their way, which no other program takes for a blob
        snapshots/COMMIT/PATH            a relative link to the blob, or the file where links cannot be made
        trees/COMMIT.json                the listing of the commit: by it a client knows whether a snapshot is complete
    CACHE/.locks/models--org--name/ETAG.lock    flock, which the hub's client takes for a blob, too

Nothing here is ever removed but our own partial files. What another program has left half-written is neither served
nor overwritten: errors name it. Not covered: which files of a commit are wanted (`hub_choice`), and the hub (`hub`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trims.core.errors import (
    ArtifactError,
    ArtifactNotFoundError,
    DeadlineError,
    NoSpaceError,
    NotSupportedError,
    PermissionDeniedError,
)
from trims.sources.hub.environment import HubEnvironment
from trims.sources.hub.files import check_name, found_file, is_commit, is_etag, parse_tree, tree_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trims.sources.base import RemoteFile
    from trims.sources.hub.files import HubFile

PARTIAL = ".trims-partial"
#: Files of one commit that are listed.
MOST_FILES = 200_000
_MOST_TREE_BYTES = 64 << 20
_LOCK_PAUSE_S = 0.1
_LOCK_MODE = 0o664  # as the hub's client makes them: users of a group share a cache
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# Tag of a cache folder: https://bford.info/cachedir/\n"
_REFUSED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class HubCache:
    """The folder that all clients of the hub on this machine share.

    Args:
        folder: Made when something is fetched.
        links: Make symbolic links.
    """

    def __init__(self, folder: Path, *, links: bool = True) -> None:
        self.folder, self.links = folder, links

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> HubCache:
        """Return the cache that the hub's client would use with these environment variables. Raises ConfigError."""
        read = HubEnvironment.read(variables)
        return cls(read.cache, links=read.links)

    def repository(self, name: str) -> CachedRepository:
        """Return the folder of a model `org/name`, which need not be there."""
        return CachedRepository(self, name)


class CachedRepository:
    """The folder of one model in the cache.

    Args:
        name: Name as the user writes it: `org/name`.
    """

    def __init__(self, cache: HubCache, name: str) -> None:
        self.cache, self.name = cache, name
        title = "--".join(("models", *name.split("/")))
        self.folder, self.locks = cache.folder / title, cache.folder / ".locks" / title

    def commit(self, revision: str) -> str | None:
        """Return the commit that a revision had when a client last asked the hub; None if none has."""
        if is_commit(revision):
            return revision if (self.folder / "snapshots" / revision).is_dir() else None
        try:
            found = (self.folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return found if is_commit(found) else None  # half-written: the hub is asked

    def listing(self, commit: str) -> dict[str, HubFile] | None:
        """Return all files of a commit; None if no client has kept its listing, or it cannot be read."""
        try:
            with self._tree(commit).open("rb") as file:
                return parse_tree(file.read(_MOST_TREE_BYTES))
        except OSError:
            return None

    def keep_listing(self, commit: str, files: Mapping[str, HubFile]) -> None:
        """Write the listing of a commit, unless there is one."""
        if self.listing(commit) is not None:
            return
        self.write(self._tree(commit), tree_text(files))

    def keep_revision(self, revision: str, commit: str) -> None:
        """Write which commit a branch or a tag has."""
        if revision != commit and self.commit(revision) != commit:
            self.write(self.folder / "refs" / revision, commit)

    def found(self, commit: str) -> dict[str, RemoteFile]:
        """Return the files of a snapshot without a listing, by path; a link that dangles is a file without bytes."""
        top = self.folder / "snapshots" / commit
        files: dict[str, RemoteFile] = {}
        for folder, _, names in os.walk(top):
            for name in names:
                path = Path(folder, name)
                if len(files) >= MOST_FILES:
                    raise ArtifactError(f"{top} holds more than {MOST_FILES} files, more than any model has")
                key = path.relative_to(top).as_posix()
                files[key] = found_file(key, path)
        return files

    def snapshot(
        self, commit: str, *, revision: str = "", base: str = "", listing: Mapping[str, HubFile] | None = None
    ) -> CachedSnapshot:
        """Return a commit's files as a place for a transfer.

        Args:
            commit: Full name.
            revision: Branch or tag that is recorded with it; by default none.
            base: Folder of the repository below which names of files are.
            listing: All files of the commit, which is recorded with it.
        """
        return CachedSnapshot(self, commit, revision or commit, base, listing)

    def write(self, path: Path, text: str) -> None:
        """Write a small file at once, for others that read it at any moment."""
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            made.write_text(text, encoding="utf-8")
            made.replace(path)
        except BaseException:
            made.unlink(missing_ok=True)
            raise

    def _tree(self, commit: str) -> Path:
        return self.folder / "trees" / f"{commit}.json"


class CachedSnapshot:
    """A `Destination`: the files of one commit in the cache.

    Args:
        commit: Full name.
        revision: What the user asked for; recorded if it is no commit.
        base: Folder of the repository below which names of files are.
        listing: All files of the commit; None if they are not known.
    """

    def __init__(
        self,
        repository: CachedRepository,
        commit: str,
        revision: str,
        base: str,
        listing: Mapping[str, HubFile] | None,
    ) -> None:
        self.repository, self.commit, self.base = repository, commit, base
        self.folder = repository.folder / "snapshots" / commit / base
        self._revision, self._listing = revision, listing
        self._blobs = repository.folder / "blobs"

    def find(self, file: RemoteFile) -> Path | None:
        """See `Destination.find`. Raises ArtifactError for a copy of another length, half-written elsewhere."""
        for path in (self._blob(file), self._pointer(file)):
            if self._is_copy(path, file):
                return path
        return None

    def partial(self, file: RemoteFile) -> Path:
        """See `Destination.partial`. The listing is there before the first byte: no client takes a part for a whole."""
        with self._writing():
            self._blobs.mkdir(parents=True, exist_ok=True)
            (self.repository.folder / "snapshots" / self.commit).mkdir(parents=True, exist_ok=True)
            tag = self.repository.cache.folder / "CACHEDIR.TAG"
            if not tag.exists():
                self.repository.write(tag, _TAG)
            if self._listing is not None:
                self.repository.keep_listing(self.commit, self._listing)
        blob = self._blob(file)
        return blob.with_name(blob.name + PARTIAL)

    @contextlib.contextmanager
    def lock(self, file: RemoteFile, wanted: Callable[[], bool]) -> Iterator[None]:
        """See `Destination.lock`: the lock that the hub's client takes before it downloads the blob."""
        if self.find(file) is not None:
            yield  # complete, which it stays: the cache may be one that this user cannot write
            return
        path = self.repository.locks / f"{self._blob(file).name}.lock"
        fd = self._locked(path, wanted, file)
        try:
            yield
        finally:
            os.close(fd)  # the file stays: who waits for it has it open

    def publish(self, file: RemoteFile, partial: Path) -> Path:
        """See `Destination.publish`. A blob that has come meanwhile is kept, and ours is given up."""
        blob, pointer = self._blob(file), self._pointer(file)
        with self._writing():
            links = self.repository.cache.links
            target = blob if links else pointer
            target.parent.mkdir(parents=True, exist_ok=True)
            if self._is_copy(target, file):
                partial.unlink()
            else:
                partial.replace(target)
            if links and not self._link(file):
                pointer.parent.mkdir(parents=True, exist_ok=True)
                target = blob.replace(pointer)
        return target

    def finish(self, files: Sequence[RemoteFile]) -> Path:
        """See `Destination.finish`. A cache that cannot be written will do if all files have their names there."""
        for file in files:
            found = self.find(file)
            if found is None:
                raise ArtifactNotFoundError(
                    f"{file.name} of {self.repository.name} is no longer in the hub's cache "
                    f"{self.repository.cache.folder}: another program has removed it; ask again, and it is fetched"
                )
            with self._writing():
                self._name(file, found)
        try:
            with self._writing():
                self.repository.keep_revision(self._revision, self.commit)
                if self._listing is not None:
                    self.repository.keep_listing(self.commit, self._listing)
        except (PermissionDeniedError, FileExistsError, IsADirectoryError, NotADirectoryError):
            # A cache that is mounted to be read: the hub's client records nothing there, either. Or a branch `a` was
            # removed since, and one `a/b` made.
            pass
        return self.folder

    def _blob(self, file: RemoteFile) -> Path:
        # A real file of a snapshot has no blob: no path is ever tried but its own.
        return self._blobs / (file.version if is_etag(file.version) else f"none-{self.commit}")

    def _pointer(self, file: RemoteFile) -> Path:
        check_name(file.name)
        return self.folder / file.name

    def _is_copy(self, path: Path, file: RemoteFile) -> bool:
        """Return whether a path has the file's bytes; links are followed. Raises ArtifactError for a wrong length."""
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False  # also a link to a blob that was removed
        except OSError as error:
            raise ArtifactError(f"{path} in the hub's cache cannot be looked at: {error.strerror}") from error
        if not stat.S_ISREG(there.st_mode) or there.st_size != file.nbytes:
            raise ArtifactError(
                f"{path.resolve()} in the hub's cache has {there.st_size} bytes, and {file.name} of "
                f"{self.repository.name} has {file.nbytes}: another program left it half-written, or writes it now. If "
                "none does, remove that file, and ask again; trims removes nothing there"
            )
        return True

    def _name(self, file: RemoteFile, found: Path) -> None:
        """Have a copy that is there lie under the file's name, too."""
        pointer = self._pointer(file)
        if found == pointer:
            return
        if pointer.exists():
            if pointer.is_symlink() and not pointer.samefile(found):
                raise ArtifactError(
                    f"{pointer} in the hub's cache leads to {pointer.resolve()} instead of {found}: another program "
                    "made it, or its file system takes names that differ in case for one. Remove it, or name a cache "
                    "on another file system (HF_HUB_CACHE)"
                )
            return
        if self.repository.cache.links and self._link(file):
            return
        self._copy(found, pointer)

    def _link(self, file: RemoteFile) -> bool:
        """Link the file's name to its blob. Return False if no links can be made here."""
        blob, pointer = self._blob(file), self._pointer(file)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if pointer.exists():
            self._name(file, blob)
            return True
        # Made elsewhere and renamed: a link that dangles is replaced, and a kill leaves no half of it in a snapshot.
        made = self._blobs / f"{blob.name}.{secrets.token_hex(4)}{PARTIAL}"
        try:
            made.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        made.replace(pointer)
        return True

    def _copy(self, found: Path, pointer: Path) -> None:
        """Make a file of its own where links cannot be made; a hard link costs no bytes, if one can be."""
        pointer.parent.mkdir(parents=True, exist_ok=True)
        made = self._blobs / f"{found.name}.{secrets.token_hex(4)}{PARTIAL}"
        try:
            try:
                os.link(found.resolve(), made)
            except OSError:
                shutil.copyfile(found, made)
            made.replace(pointer)
        except BaseException:
            made.unlink(missing_ok=True)
            raise

    def _locked(self, path: Path, wanted: Callable[[], bool], file: RemoteFile) -> int:
        while True:
            with self._writing():
                path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _LOCK_MODE)
                with contextlib.suppress(PermissionError):  # another user has made it
                    os.fchmod(fd, _LOCK_MODE)
            try:
                if _try_lock(fd, path):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if not wanted():
                raise DeadlineError(
                    f"another program downloads {file.name} of {self.repository.name} into the hub's cache: it holds "
                    f"the lock {path}"
                )
            time.sleep(_LOCK_PAUSE_S)  # flock has no deadline of its own

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        folder = self.repository.cache.folder
        try:
            yield
        except OSError as error:
            if error.errno in _REFUSED:
                raise PermissionDeniedError(
                    f"the hub's cache {folder} cannot be written: {error.strerror} ({error.filename}); let this user "
                    "write there, or name another folder (HF_HUB_CACHE)"
                ) from error
            if error.errno in _FULL:
                raise NoSpaceError(
                    f"the hub's cache {folder} is full: {error.strerror}; make room (`hf cache rm`), or name another "
                    "folder (HF_HUB_CACHE)"
                ) from error
            raise


def _try_lock(fd: int, path: Path) -> bool:
    """Lock an open file for this process alone. Return False if another process has it, or it has been removed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
            raise NotSupportedError(
                f"the file system of {path} has no locks (flock): two programs would write one file of the hub's "
                "cache; name a cache on another one (HF_HUB_CACHE)"
            ) from error
        raise
    return os.fstat(fd).st_nlink > 0
