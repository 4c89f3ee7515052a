"""Judgements that outlast the process: what `memo="content"` remembers, in a folder.

They lie in an SQLite database, which many processes of one machine may share, and which a process that is
killed leaves whole. Nothing in it is ever executed or unpickled. The folder is a help, never a must: what
goes wrong there costs a judgement that is made again, and a warning.
"""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

from .fingerprints import fingerprint
from .memo import content_key
from .score import Score

__all__ = ["ScoreStore"]

_log = logging.getLogger("skynet_adapters")

T = TypeVar("T")

_MOST_ROWS = 50_000
_MOST_CHARS = 20_000
_TRIMMED_EVERY = 500
_BUSY_SECONDS = 2.0
_STILL_BUSY_SECONDS = 0.05  # after one that waited in vain

_APPLICATION = 0x534B594E  # tells this package's databases from others
_SCHEMA = 1
_TABLE = """
CREATE TABLE judgement (
    id INTEGER PRIMARY KEY, metric TEXT NOT NULL, key BLOB NOT NULL,
    score TEXT NOT NULL, digest BLOB NOT NULL,
    UNIQUE (metric, key)
)
"""
# In place of all judgements of a metric that reads what a rollout took.
_MEASURES = b"measures"


class ScoreStore:
    """Keep the judgements of one metric in a folder; nothing here raises an `Exception`.

    Args:
        folder: Where the databases lie, the newest one in use; made when it is missing.
        name: The metric's name, for warnings.
        metric: What the judgements are of; its fingerprint is taken when it is first needed.
    """

    def __init__(self, folder: str, name: str, metric: Any) -> None:
        self._folder = Path(folder)
        self._name = name
        self._judge = weakref.ref(metric)  # which holds this
        self._metric = ""  # its fingerprint
        self._opened: _Opened | None = None
        self._first = 0  # databases before this one are damaged
        self._off = False
        self._warned: set[str] = set()

    def get(self, key: bytes) -> Score | None:
        """Give the judgement that was kept, else `None`."""
        return self._tried(lambda database: self._read(database, key))

    def _read(self, database: "_Opened", key: bytes) -> Score | None:
        row = database.row(self._metric, key)
        if row is None:
            return None
        text, digest = row
        if digest == _digest(self._metric, key, text):
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return _score(text)
        self._warn("row", "holds a judgement that is damaged, which is made again")
        return None

    def put(self, key: bytes, score: Score) -> None:
        """Keep a judgement, unless JSON cannot hold what is in it."""
        text = _text(score)
        if text is None:
            self._warn(
                "info",
                "cannot keep every judgement: beside some feedback stands what JSON cannot hold, or what "
                f"takes over {_MOST_CHARS:,} characters; the next process judges such a case again",
            )
            return
        self._tried(lambda database: database.keep(self._metric, key, text))

    def turn_off(self) -> None:
        """Forget every judgement of this metric, for good: equal contents do not score alike."""
        self._tried(lambda database: database.forget(self._metric))
        self._off = True

    # --- how it is asked ----------------------------------------------------------------------------

    def _tried(self, ask: "Callable[[_Opened], T]") -> T | None:
        for _ in range(2):  # once more, where the database was damaged
            try:
                database = None if self._off else self._database()
                return None if database is None else ask(database)
            except sqlite3.Error as error:
                if not _is_damage(error):
                    self._warn("error", f"cannot be used now ({error}); some judgements are made again")
                    return None
                self._begin_another(error)
            except Exception as error:  # a folder that cannot be made, a metric that has no fingerprint
                self._off = True
                self._warn("off", f"cannot be used ({type(error).__name__}: {error}); nothing is kept there")
                return None
        return None

    def _database(self) -> "_Opened | None":
        opened = self._opened
        if opened is None:
            metric = self._metric or fingerprint(cast("Any", self._judge()))
            with _opening:
                if self._opened is None:
                    self._metric = metric
                    number = max(self._first, *(_number(path) for path in self._folder.glob(_file("*"))), 0)
                    opened = _Opened(self._folder / _file(number or ""), number)
                    self._off = opened.row(metric, _MEASURES) is not None
                    self._opened = opened
        return None if self._off else self._opened

    def _begin_another(self, error: sqlite3.Error) -> None:
        # Under another name: other processes may have it open, and SQLite finds what belongs to a database by
        # its name.
        with _opening:
            damaged, self._opened = self._opened, None
            highest = max((_number(path) for path in self._folder.glob(_file("*"))), default=0)
            self._first = 1 + (highest if damaged is None else damaged.number)
        self._warn(
            f"damage {self._first}", f"is damaged ({error}); it is left as it is, and another one begun"
        )

    def _warn(self, topic: str, what: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            _log.warning("metric %r: the memory in %r %s.", self._name, str(self._folder), what)


# --- the database -------------------------------------------------------------------------------------


class _OtherSchemaError(sqlite3.DatabaseError):
    """The database is one of something else."""


def _file(number: object) -> str:
    return f"judgements{number}.sqlite3"


def _number(path: Path) -> int:
    digits = path.name.removeprefix("judgements").removesuffix(".sqlite3")
    return int(digits) if digits.isdecimal() else 0


def _is_damage(error: sqlite3.Error) -> bool:
    name: str = getattr(error, "sqlite_errorname", "")
    return isinstance(error, _OtherSchemaError) or name.startswith(
        ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_CONSTRAINT")
    )


# Held while a database is opened for the first time, and while this process forks.
_opening = threading.Lock()


class _Opened:
    """An open database, for the threads of one process."""

    def __init__(self, path: Path, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()
        self._path = path
        self._kept = 0
        self._patience = _BUSY_SECONDS
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connected: sqlite3.Connection | None = None
        self._connection  # noqa: B018  # raises here
        _all_opened.add(self)

    @property
    def _connection(self) -> sqlite3.Connection:
        """The connection, made anew after a fork."""
        if self._connected is None:
            # Without transactions but for the one of each statement.
            self._connected = sqlite3.connect(
                self._path, timeout=self._patience, isolation_level=None, check_same_thread=False
            )
            try:
                if not self._is_ours():
                    self._make()
                # What is written down outlasts the process at once, and a power cut a little later.
                self._connected.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                self.close()
                raise
        return self._connected

    def close(self) -> None:
        """Close the connection until it is needed again; needs the lock."""
        connection, self._connected = self._connected, None
        if connection is not None:
            connection.close()

    def _make(self) -> None:
        self._check_empty()  # before anything is changed
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:  # SQLite does not wait for others that change the journal
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        try:
            if not self._is_ours():  # another process may have made it meanwhile
                self._check_empty()
                self._connection.execute(_TABLE)
                self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._connection.execute(f"PRAGMA user_version = {_SCHEMA}")
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _check_empty(self) -> None:
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and not self._is_ours():
            raise _OtherSchemaError("it has another layout")

    def _is_ours(self) -> bool:
        application, schema = (
            self._connection.execute(f"PRAGMA {what}").fetchone()[0]
            for what in ("application_id", "user_version")
        )
        return (application, schema) == (_APPLICATION, _SCHEMA)

    def _wait_at_most(self, seconds: float) -> None:
        """Say how long a call waits for a lock: who keeps one for long must not hold up each judgement."""
        if seconds != self._patience:
            self._patience = seconds
            self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1e3)}")

    def row(self, metric: str, key: bytes) -> tuple[Any, Any] | None:
        with self.lock:
            return self._connection.execute(
                "SELECT score, digest FROM judgement WHERE metric = ? AND key = ?", (metric, key)
            ).fetchone()

    def keep(self, metric: str, key: bytes, text: str) -> None:
        with self.lock:
            try:
                self._connection.execute(
                    "INSERT OR REPLACE INTO judgement (metric, key, score, digest) VALUES (?, ?, ?, ?)",
                    (metric, key, text, _digest(metric, key, text)),
                )
            except sqlite3.OperationalError:
                self._wait_at_most(_STILL_BUSY_SECONDS)
                raise
            self._wait_at_most(_BUSY_SECONDS)
            if self._kept % _TRIMMED_EVERY == 0:
                self._connection.execute(
                    "DELETE FROM judgement WHERE id <= (SELECT max(id) FROM judgement) - ?", (_MOST_ROWS,)
                )
            self._kept += 1

    def forget(self, metric: str) -> None:
        with self.lock:
            self._connection.execute("DELETE FROM judgement WHERE metric = ?", (metric,))
        self.keep(metric, _MEASURES, "")


# No connection may cross a fork: the child would count locks as its own that only the parent has, and wait
# for ever where a thread of the parent was at work.
_all_opened: "weakref.WeakSet[_Opened]" = weakref.WeakSet()
_held: list[threading.Lock] = []
# How long a fork waits for a thread that is at work; for ever it would where a signal comes in between.
_FORK_SECONDS = 10.0


def _close_all() -> None:
    if _opening.acquire(timeout=_FORK_SECONDS):
        _held.append(_opening)
    for opened in list(_all_opened):
        if opened.lock.acquire(timeout=_FORK_SECONDS):
            _held.append(opened.lock)
            with contextlib.suppress(sqlite3.Error):
                opened.close()


def _go_on() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_all, after_in_parent=_go_on, after_in_child=_go_on)


def _digest(metric: str, key: bytes, text: Any) -> bytes:
    """Tell a judgement that is damaged, which SQLite itself does not."""
    return blake2b(repr((metric, key, text)).encode(), digest_size=16).digest()


# --- a score as text ----------------------------------------------------------------------------------


def _text(score: Score) -> str | None:
    held = {**score._asdict(), "scores": dict(score.scores), "info": dict(score.info)}
    del held["error"]
    try:
        text = json.dumps(held, allow_nan=False)
        same = content_key(json.loads(text)) == content_key(held)  # no tuple that comes back as a list
    except Exception:  # what JSON has not
        return None
    return text if same and len(text) <= _MOST_CHARS + len(json.dumps(score.feedback)) else None


def _score(text: str) -> Score:
    held: dict[str, Any] = json.loads(text)
    value, feedback, scores, info = (held[name] for name in ("value", "feedback", "scores", "info"))
    if not (isinstance(feedback, str) and isinstance(scores, dict) and isinstance(info, dict)):
        raise TypeError
    return Score(float(value), feedback, scores, info)  # pyright: ignore[reportUnknownArgumentType]
