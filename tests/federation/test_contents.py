"""Contents of messages are looked at and filled as Flower's own records are."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.federation.contents import Viewed, filled

VIEWS = {
    "array_records": ArrayRecord,
    "metric_records": MetricRecord,
    "config_records": ConfigRecord,
}


def content():
    return RecordDict(
        {"a": ArrayRecord(), "m": MetricRecord({"loss": 1.0}), "c": ConfigRecord({"x": 2})}
    )


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_that_of_flower(view):
    plain = content()
    ours, theirs = getattr(Viewed.of(plain), view), getattr(plain, view)
    assert dict(ours) == dict(theirs)
    assert len(ours) == len(theirs)
    for name in ("a", "m", "c", "none"):
        assert ours.get(name) is theirs.get(name)


@pytest.mark.parametrize(("view", "kind"), VIEWS.items())
def test_what_is_set_or_deleted_in_a_view_is_in_the_records(view, kind):
    plain = content()
    shown = getattr(Viewed.of(plain), view)
    shown["new"] = new = kind()
    assert plain["new"] is new
    del shown["new"]
    assert "new" not in plain


def test_a_view_takes_records_of_its_kind_alone():
    shown = Viewed.of(content()).metric_records
    with pytest.raises(TypeError, match="expected MetricRecord"):
        shown["new"] = ArrayRecord()
    with pytest.raises(KeyError):
        del shown["a"]


def test_a_filled_record_is_that_of_flower():
    items = {"loss": 1.5, "num-examples": 3}
    assert filled(MetricRecord(), items) == MetricRecord(items)
    assert filled(RecordDict(), dict(content())) == content()


def test_what_is_viewed_is_sent_as_flowers_own():
    plain = content()
    viewed = Viewed.of(plain)
    assert viewed.object_id == plain.object_id
    assert viewed.metric_records.copy() == dict(plain.metric_records)
    assert repr(viewed.config_records) == repr(dict(plain.config_records))
