"""State on S3, against a real server."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, ExternalError
from headrace.state.storage import open_storage


def test_what_is_written_is_read_listed_and_deleted(s3_url: str):
    storage = open_storage(s3_url)
    storage.check_writable()
    storage.write("a/one", b"1")
    storage.write("a/b/two", b"22")
    storage.write("a/one", b"replaced")
    assert storage.read("a/one") == b"replaced"
    assert storage.size("a/b/two") == 2
    assert storage.list("a") == ["a/b/two", "a/one"]
    assert storage.children("a") == ["b", "one"]
    assert storage.local_path("a/one") is None
    storage.delete("a/one")
    storage.delete("a/one")
    assert not storage.exists("a/one")
    assert storage.list("a") == ["a/b/two"]
    assert storage.list("nothing") == []
    with pytest.raises(FileNotFoundError):
        storage.read("a/one")


def test_a_name_is_created_once(s3_url: str):
    storage = open_storage(s3_url)
    assert storage.create("lock", b"first")
    assert not storage.create("lock", b"second")
    assert storage.read("lock") == b"first"


def test_a_large_file_goes_in_parts(s3_url: str, tmp_path: Path):
    storage = open_storage(s3_url)
    content = os.urandom(24 * 1024 * 1024)
    local = tmp_path / "large"
    local.write_bytes(content)
    storage.write_file("large", str(local))
    assert storage.size("large") == len(content)
    assert storage.read("large") == content


def test_a_storage_can_be_pickled(s3_url: str):
    open_storage(s3_url).write("x", b"1")
    assert pickle.loads(pickle.dumps(open_storage(s3_url))).read("x") == b"1"


def test_wrong_credentials_are_said_to_be_wrong(s3_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    storage = open_storage(f"{s3_url}/other")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        storage.check_writable()
    with pytest.raises(ExternalError):
        storage.write("x", b"1")
