"""A disk in memory, behind the calls of `os` that the storage of local directories makes.

What a file holds and what a directory lists are two things, as on a real disk: a written file is on disk when
it was synced, a new name when its directory was synced. Names are logged in order, so that a loss of power
leaves the names up to some moment. A file that was not synced before may then be empty, cut short or whole.
The storage is the real one (`headrace.storage.local`): only what it calls is simulated. Calls for paths of
the real file system go to the real `os`.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from tests.simulation.world import Actor, World

ROOT: Final = "/simulated"


@dataclass
class Inode:
    """A file: what a reader sees, and what of it is on disk for sure."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes | None = None
    mode: int = 0o600
    locked_by: Actor | None = None


_Change = tuple[str, Inode | None]
"""A name and what it stands for from then on; None if it was removed."""


class Disk:
    """Files and directories; `lose_power` forgets what was not synced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._log: list[_Change] = []
        self.directories: set[str] = {ROOT}

    def put(self, path: str, inode: Inode | None) -> None:
        """Change what a name stands for."""
        if inode is None:
            self.names.pop(path, None)
        else:
            self.names[path] = inode
        self._log.append((path, inode))

    def sync_names(self) -> None:
        """All changes of names so far are on disk."""
        for path, inode in self._log:
            _apply(self._durable, path, inode)
        self._log.clear()

    def lose_power(self) -> None:
        """Go back to what is on disk: the synced names, some of the others in order, synced contents."""
        order = self.world.random
        kept = order.randint(0, len(self._log))
        self.world.tell(f"POWER LOSS: {len(self._log) - kept} of {len(self._log)} unsynced names are lost")
        for path, inode in self._log[:kept]:
            _apply(self._durable, path, inode)
        self._log.clear()
        for path, inode in self._durable.items():
            if inode.synced is None or inode.synced != bytes(inode.content):
                written = bytes(inode.content)
                left = (
                    [written, b"", written[: len(written) // 2]]
                    if inode.synced is None
                    else [written, inode.synced]
                )
                inode.content[:] = order.choice(left)
                self.world.tell(f"POWER LOSS: {path} has {len(inode.content)} of {len(written)} bytes")
            inode.synced = bytes(inode.content)
        self.names = dict(self._durable)

    def list(self, directory: str) -> list[str]:
        """The names of files and directories directly below one."""
        start = directory.rstrip("/") + "/"
        below = {path[len(start) :].partition("/")[0] for path in self.names if path.startswith(start)}
        below |= {path[len(start) :].partition("/")[0] for path in self.directories if path.startswith(start)}
        return sorted(below)


def _apply(names: dict[str, Inode], path: str, inode: Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


class _File(io.RawIOBase):
    """An open file of the disk."""

    def __init__(self, disk: Disk, inode: Inode, path: str) -> None:
        super().__init__()
        self._disk, self._inode, self._path = disk, inode, path
        self._position = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = offset + (0, self._position, len(self._inode.content))[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        end = len(self._inode.content) if size < 0 else self._position + size
        data = bytes(self._inode.content[self._position : end])
        self._position += len(data)
        return perhaps_damaged(self._disk.world, self._path, data)

    def readall(self) -> bytes:
        return self.read()

    def write(self, data: Any, /) -> int:
        view = bytes(data)
        world, half = self._disk.world, len(view) // 2
        self._extend(view[:half])
        # A process that is killed here leaves half of what it wrote.
        world.point(f"writes {len(view)} bytes to {short(self._path)}")
        self._extend(view[half:])
        return len(view)

    def _extend(self, data: bytes) -> None:
        self._inode.content[self._position : self._position + len(data)] = data
        self._position += len(data)

    def truncate(self, size: int | None = None, /) -> int:
        size = self._position if size is None else size
        self._disk.world.point(f"truncates {short(self._path)} to {size} bytes")
        del self._inode.content[size:]
        return size

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file is synced by its object")


def short(path: str) -> str:
    """A path for the trace: the same in every run of a seed."""
    return path.removeprefix(ROOT + "/") if path.startswith(ROOT) else "a finished file"


def perhaps_damaged(world: World, path: str, data: bytes) -> bytes:
    """What a read returns; a bit may have flipped on the way."""
    actor = world.actor
    rate = world.rates.damaged_read * (10 if path.endswith(".parquet") else 1)  # few reads are of these
    if data and actor is not None and world.chance(rate):
        place = world.random.randrange(len(data))
        world.tell(f"DAMAGED read of {path.removeprefix(ROOT + '/')}: bit {place * 8}")
        actor.damaged += 1
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    return data


class SimulatedOs:
    """The calls of `os` over a simulated disk; paths outside of it go to the real one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._handles: dict[int, tuple[str, Inode | None]] = {}
        self._next = 1_000_000
        self.path = SimpleNamespace(
            join=os.path.join,
            dirname=os.path.dirname,
            basename=os.path.basename,
            relpath=os.path.relpath,
            isfile=lambda path: self._is_file(path) if _is_ours(path) else os.path.isfile(path),
            isdir=lambda path: self._is_dir(path) if _is_ours(path) else os.path.isdir(path),
            exists=self._exists,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # ------------------------------------------------------------------------------ questions

    def _is_file(self, path: Any) -> bool:
        return os.fspath(path) in self._disk.names

    def _is_dir(self, path: Any) -> bool:
        return os.fspath(path) in self._disk.directories

    def _exists(self, path: Any) -> bool:
        return self._is_file(path) or self._is_dir(path) if _is_ours(path) else os.path.exists(path)

    def stat(self, path: Any) -> Any:
        if not _is_ours(path):
            return os.stat(path)
        path = os.fspath(path)
        if path in self._disk.directories:
            return SimpleNamespace(st_mode=stat.S_IFDIR | 0o700, st_size=0)
        inode = self._inode(path)
        return SimpleNamespace(st_mode=stat.S_IFREG | inode.mode, st_size=len(inode.content))

    def access(self, path: Any, mode: int) -> bool:
        return True if _is_ours(path) else os.access(path, mode)

    def listdir(self, path: Any) -> list[str]:
        if not _is_ours(path):
            return os.listdir(path)
        self._call(f"lists {short(path)}", lambda: None)
        if path not in self._disk.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._disk.list(path)

    def walk(self, path: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        if not _is_ours(path):
            yield from os.walk(path)
            return
        names = self._disk.list(path) if path in self._disk.directories else []
        directories = [name for name in names if posixpath.join(path, name) in self._disk.directories]
        yield path, directories, [name for name in names if posixpath.join(path, name) in self._disk.names]
        for name in directories:
            yield from self.walk(posixpath.join(path, name))

    # ------------------------------------------------------------------------------ changes

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if not _is_ours(path):
            return os.open(path, flags, mode)
        path = os.fspath(path)
        if path in self._disk.directories:
            return self._handle(path, None)

        def effect() -> Inode:
            inode = self._disk.names.get(path)
            if inode is None:
                if not flags & os.O_CREAT:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                self._check_parent(path)
                inode = Inode(mode=mode)
                self._disk.put(path, inode)
            elif flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            return inode

        return self._handle(path, self._call(f"opens {short(path)}", effect))

    def _handle(self, path: str, inode: Inode | None) -> int:
        self._next += 1
        self._handles[self._next] = (path, inode)
        return self._next

    def close(self, handle: int) -> None:
        if handle not in self._handles:
            os.close(handle)
            return
        del self._handles[handle]

    def fdopen(self, handle: int, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if handle not in self._handles:
            return os.fdopen(handle, mode, *arguments, **options)
        path, inode = self._handles.pop(handle)
        assert inode is not None
        return _Synced(_File(self._disk, inode, path))

    def fsync(self, handle: Any) -> None:
        if isinstance(handle, _Synced):
            self._sync(handle.file._path, handle.file._inode)
        elif handle in self._handles:
            self._sync(*self._handles[handle])
        else:
            os.fsync(handle)

    def _sync(self, path: str, inode: Inode | None) -> None:
        def effect() -> None:
            if inode is None:
                self._disk.sync_names()
            else:
                inode.synced = bytes(inode.content)

        self._call(f"syncs {short(path)}", effect)

    def flock(self, file: Any, operation: int) -> None:
        """`fcntl.flock`, of an exclusive lock; it ends with its process or when the file is closed."""
        del operation
        inode, world = file.file._inode, self._disk.world
        world.point(f"locks {short(file.file._path)}")
        holder = inode.locked_by
        if holder is not None and holder is not world.actor and not holder.killed and not holder.ended:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        inode.locked_by = world.actor

    def replace(self, source: Any, target: Any) -> None:
        self.rename(source, target)

    def rename(self, source: Any, target: Any) -> None:
        if not _is_ours(target):
            os.rename(source, target)
            return
        source, target = os.fspath(source), os.fspath(target)

        def effect() -> None:
            self._check_parent(target)
            if _is_ours(source):
                inode = self._inode(source)
                self._disk.put(source, None)
            else:
                with open(source, "rb") as file:
                    inode = Inode(bytearray(file.read()))
                os.unlink(source)
            self._disk.put(target, inode)

        self._call(f"renames {short(source)} to {short(target)}", effect)

    def link(self, source: str, target: str) -> None:
        def effect() -> None:
            if target in self._disk.names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            self._check_parent(target)
            self._disk.put(target, self._inode(source))

        self._call(f"links {short(source)} to {short(target)}", effect)

    def unlink(self, path: Any) -> None:
        if not _is_ours(path):
            os.unlink(path)
            return

        def effect() -> None:
            self._inode(path)
            self._disk.put(path, None)

        self._call(f"removes {short(path)}", effect)

    def chmod(self, path: Any, mode: int) -> None:
        if not _is_ours(path):
            os.chmod(path, mode)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        if not _is_ours(path):
            os.mkdir(path, mode)
            return
        if path in self._disk.directories:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._check_parent(path)
        self._disk.directories.add(path)

    def makedirs(self, path: str, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        if not _is_ours(path):
            os.makedirs(path, mode, exist_ok=exist_ok)
            return
        while path.startswith(ROOT):
            self._disk.directories.add(path)
            path = posixpath.dirname(path)

    def rmdir(self, path: str) -> None:
        if not _is_ours(path):
            os.rmdir(path)
            return
        if self._disk.list(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._disk.directories.discard(path)

    def rmtree(self, path: str) -> None:
        """`shutil.rmtree`."""
        for name in [name for name in self._disk.names if name.startswith(path + "/")]:
            self.unlink(name)
        self._disk.directories -= {
            name for name in self._disk.directories if name == path or name.startswith(path + "/")
        }

    def open_file(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        """The built-in `open`."""
        if not _is_ours(path):
            return open(path, mode, *arguments, **options)
        path = os.fspath(path)
        return self._call(f"reads {short(path)}", lambda: _File(self._disk, self._inode(path), path))

    # ------------------------------------------------------------------------------

    def _inode(self, path: str) -> Inode:
        inode = self._disk.names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def _check_parent(self, path: str) -> None:
        if posixpath.dirname(path) not in self._disk.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _call(self, what: str, effect: Callable[[], Any]) -> Any:
        return self._disk.world.call("storage", what, effect, _io_error)


class _Synced:
    """What `os.fdopen` returns: a file whose `fileno` is itself, for `os.fsync`."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        inode = self.file._inode
        if inode.locked_by is self.file._disk.world.actor:
            inode.locked_by = None
        self.file.close()

    def fileno(self) -> Any:
        return self

    def flush(self) -> None:
        """Nothing is held back: a killed process loses nothing that it wrote."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _io_error(_why: str) -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def _is_ours(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(ROOT)
