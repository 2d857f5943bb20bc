"""What goes to S3 in one request: a file's bytes, read anew while they are sent, or what is held in memory."""

from __future__ import annotations

from opsctl.transfer.object_store.etag import md5, next_md5
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.sources import FileSource, Source

#: A file's bytes up to here are held: they need no second reading, and no word of the server before they are sent.
_MOST_HELD_BYTES = 1 << 20
#: So much is read at once, whatever less is asked for, and waited for under a limit: HTTP libraries ask for 16 KiB.
_PIECE_BYTES = 256 << 10


class FileBody:
    """`count` bytes of a file from `begin`; every try to send them begins with a look whether it is as it was.

    It is what botocore takes for an open file. What it raises, FileFault and Stopped, comes wrapped by botocore.
    """

    def __init__(self, source: FileSource, begin: int, count: int, flow: Flow) -> None:
        self._source, self._begin, self._count, self._flow = source, begin, count, flow
        self._at = 0
        self._view: memoryview | None = None

    def __len__(self) -> int:
        return self._count

    def tell(self) -> int:
        """How many bytes were read."""
        return self._at

    def seek(self, at: int, whence: int = 0) -> int:
        """Go on from the byte `at`; `whence` as for any file."""
        self._at = at + (0, self._at, self._count)[whence]
        return self._at

    def read(self, _: int = -1) -> memoryview:
        """The next bytes, valid until the next are read; none at the end."""
        if not self._at:
            self._source.check_unchanged()
        if self._view is None:
            self._view = memoryview(bytearray(min(_PIECE_BYTES, self._count)))
        piece = self._view[: self._count - self._at]
        self._flow.take(len(piece))
        self._source.read_at(self._begin + self._at, piece)
        self._at += len(piece)
        return piece


Body = bytearray | FileBody


def next_body(source: Source, count: int, flow: Flow) -> tuple[Body, bytes]:
    """(the next `count` bytes of a source, their MD5), for which they are read once. Raises FileFault."""
    if isinstance(source, FileSource) and count > _MOST_HELD_BYTES:
        begin = source.at
        return FileBody(source, begin, count, flow), next_md5(source, count)
    body = bytearray(count)
    source.read_into(memoryview(body))
    return body, md5(body)
