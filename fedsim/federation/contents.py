"""Read and fill the records in Flower's messages without the type checks of Flower's classes.

Flower checks the type of each item that is set, and of each record for each view by kind. For a
client of a small model, whose training step takes a millisecond, this costs some .05 ms.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, TypeGuard, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.errors import ScenarioError

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)
Filled = TypeVar("Filled", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

KINDS = (ArrayRecord, ConfigRecord, MetricRecord)
"""The kinds of Flower's records, none of which is one of another kind."""


def records_of(content: RecordDict, kind: type[Record]) -> list[Record]:
    """A message's records of a kind.

    Flower's own views, such as `content.array_records`, check every key anew each time they are
    read.
    """
    return [record for record in content.values() if is_a(record, kind)]


def only_record(content: RecordDict, kind: type[Record], sender: object) -> Record:
    """The only record of a kind in what a strategy sends.

    Raises:
        ScenarioError: There is none, or there are several.
    """
    found = records_of(content, kind)
    if len(found) != 1:
        raise ScenarioError(
            f"{type(sender).__name__} sends {len(found)} records of the kind {kind.__name__}; "
            "expected one, from which the clients' model or settings are read. Put all entries "
            "into one record"
        )
    return found[0]


def is_a(record: object, kind: type[Record]) -> TypeGuard[Record]:
    """Whether a record is of a kind; `isinstance` takes ten times as long for Flower's."""
    own = type(record)
    return own is kind or (own not in KINDS and isinstance(record, kind))


class Viewed(RecordDict):
    """Records whose views by kind, such as `array_records`, cost next to nothing.

    Flower's averages make four of Flower's own views of each reply. A view is a mapping here, too,
    and what is set or deleted in it is set or deleted in the records. It shows later changes of
    the records, which Flower's does not.
    """

    @classmethod
    def of(cls, content: RecordDict) -> "Viewed":
        """The same records; changes of either are seen in both."""
        made = cls.__new__(cls)
        vars(made).update(vars(content))
        return made

    def deflate(self) -> bytes:
        """As Flower sends it, under the name of Flower's class."""
        return RecordDict(dict(self)).deflate()

    @property
    def array_records(self) -> Any:
        """The ArrayRecords by name."""
        return _View(self, ArrayRecord)

    @property
    def metric_records(self) -> Any:
        """The MetricRecords by name."""
        return _View(self, MetricRecord)

    @property
    def config_records(self) -> Any:
        """The ConfigRecords by name."""
        return _View(self, ConfigRecord)


class _View(MutableMapping[str, Any]):
    def __init__(self, records: RecordDict, kind: Any) -> None:
        self._records, self._kind = records, kind

    def __getitem__(self, key: str) -> Any:
        if is_a(found := self._records[key], self._kind):
            return found
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if not is_a(value, self._kind):
            raise TypeError(f"{key!r:.80}: {type(value).__name__}, expected {self._kind.__name__}")
        self._records[key] = value

    def __delitem__(self, key: str) -> None:
        self[key]
        del self._records[key]

    def __iter__(self) -> Iterator[str]:
        return iter([key for key, one in self._records.items() if is_a(one, self._kind)])

    def __len__(self) -> int:
        return len(records_of(self._records, self._kind))

    def __repr__(self) -> str:
        return repr(self.copy())

    def copy(self) -> dict[str, Any]:
        """The records by name."""
        return dict(self)


def config_record(content: RecordDict, key: str) -> ConfigRecord | None:
    """The ConfigRecord of that name, if there is one."""
    found = content.get(key, None)
    return found if is_a(found, ConfigRecord) else None


def entries(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a record of Flower's holds, to read; its own views cost a call for each entry."""
    held = vars(record).get("_data")
    return held if type(held) is dict else record


def filled(record: Filled, items: Mapping[str, Any]) -> Filled:
    """Put items of the right types into a record of Flower's.

    Flower checks the type of each item that is set, which takes longer than making an array.
    """
    held = vars(record).get("_data")
    (held if type(held) is dict else record).update(items)
    return record
