"""Writing output files so that nothing half-written is ever left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simcore.errors import OutputError


@contextmanager
def written_beside(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to ``path`` when the block succeeds, remove it otherwise.

    Raises `OutputError` if the folder does not exist or cannot be written.
    """
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"cannot write {target}: the folder {folder} does not exist")
    if target.is_dir():
        raise OutputError(f"cannot write {target}: it is a folder")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.stem}-", suffix=target.suffix, dir=folder)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}") from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
