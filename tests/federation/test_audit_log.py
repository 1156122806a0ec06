"""What somebody's own Flower project logs at the end."""

import logging

from fedsim.federation import audit_log
from fedsim.federation.replies import failures


def test_each_adversary_has_a_line_and_no_sentence_is_empty(tmp_path, monkeypatch, caplog):
    rows = [
        {"label": "llg", "badge": "leaks", "sentence": "Labels recovered 100 %"},
        {"label": "dlg", "badge": "not known: no attack ended", "sentence": ""},
    ]
    monkeypatch.setattr(audit_log, "verdicts", lambda folder: rows)
    monkeypatch.setattr(audit_log.LOG, "propagate", True)
    report = tmp_path / "report.html"
    report.touch()
    with caplog.at_level(logging.INFO, audit_log.LOG.name):
        audit_log.log_results(report)
    assert caplog.messages == [
        "fedsim: llg: leaks. Labels recovered 100 %",
        "fedsim: dlg: not known: no attack ended",
        f"fedsim: the results are in {report}",
    ]


def test_what_a_client_says_is_one_line():
    said = failures({3: "ClientError: oh\nWARNING: fedsim: all is well\x1b[2J"})
    assert said == r"1 client: client 3: ClientError: oh WARNING: fedsim: all is well\x1b[2J"
