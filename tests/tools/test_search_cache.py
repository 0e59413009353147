"""The cache of search indexes, with real processes: whoever asks gets a whole index, whatever became of the
folder."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from steprl.errors import ConfigError, StorageError
from steprl.tools.search import Bm25, Passage, build_index
from steprl.tools.search_cache import default_folder, open_index

PASSAGES = [
    Passage("Ada Byte", "Ada Byte was born in Kappa."),
    Passage("Kappa", "Kappa is a town. Straße – 東京."),
    Passage("", "untitled"),
    Passage("Empty", ""),
]
QUERIES = ["kappa", "ada born", "untitled", "empty", "zyzzyva", "in"]

BUILD = """
import sys, time
from pathlib import Path
from steprl.tools.search import Passage
from steprl.tools.search_cache import open_index
folder, start = Path(sys.argv[1]), float(sys.argv[2])
passages = [Passage(f"T{n}", f"word{n} word{n % 7} common") for n in range(2000)]
time.sleep(max(0.0, start - time.time()))
index = open_index(passages, folder=folder)
hits = index.search("word3 common", results=5)
print([(hit.number, hit.score) for hit in hits], type(index.scorer.scores["data"]).__name__)
"""


def found(index):
    return [index.search(query, results=3) for query in QUERIES]


def kept(folder):
    return [path.name for path in folder.iterdir()]


def the_folder(folder):
    (place,) = folder.iterdir()
    return place


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "steprl.tools"]


@pytest.fixture(autouse=True)
def _listening(caplog):
    caplog.set_level(logging.INFO, logger="steprl.tools")


def test_what_was_built_is_opened_again_and_finds_the_same(tmp_path, caplog):
    built = open_index(PASSAGES, folder=tmp_path)
    name = the_folder(tmp_path).name
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    opened = open_index(PASSAGES, folder=tmp_path)
    assert found(built) == found(opened) == found(build_index(PASSAGES))
    assert list(opened.passages) == PASSAGES and opened.passages[-1] == PASSAGES[-1]
    assert opened.passages[1:3] == PASSAGES[1:3]
    with pytest.raises(IndexError):
        opened.passages[4]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert kept(tmp_path) == [name] and told(caplog) == []


def test_it_is_memory_mapped_when_new_and_when_opened_again(tmp_path):
    for _ in range(2):
        index = open_index(PASSAGES, folder=tmp_path)
        arrays = index.scorer.scores
        assert all(isinstance(arrays[name], np.memmap) for name in ("data", "indices", "indptr"))


@pytest.mark.parametrize(
    ("passages", "options"),
    [
        (PASSAGES[::-1], Bm25()),
        (PASSAGES[:-1], Bm25()),
        ([Passage("Ada", "Byte Ada Byte was born in Kappa."), *PASSAGES[1:]], Bm25()),
        (PASSAGES, Bm25(k1=1.2)),
        (PASSAGES, Bm25(b=0.5)),
    ],
)
def test_another_corpus_or_other_options_are_another_index(tmp_path, passages, options):
    open_index(PASSAGES, folder=tmp_path)
    other = open_index(passages, options, folder=tmp_path)
    assert len(kept(tmp_path)) == 2
    assert found(other) == found(build_index(passages, options))


def damage_nothing_left(place):
    for path in place.iterdir():
        if path.is_file():
            path.unlink()


def damage_one_bit(place):
    path = next((place / "bm25s").glob("data*"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def damage_half_written(place):
    path = place / "passages.utf8"
    path.write_bytes(path.read_bytes()[:10])


def damage_a_file_gone(place):
    (place / "ends.npy").unlink()


def damage_no_manifest(place):
    (place / "manifest.json").unlink()


def damage_half_a_manifest(place):
    path = place / "manifest.json"
    path.write_text(path.read_text()[:20])


def damage_another_manifest(place):
    (place / "manifest.json").write_text("[1]")


def damage_a_file_in_the_way(place):
    import shutil

    shutil.rmtree(place)
    place.write_text("not a folder")


DAMAGES = [function for name, function in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_index_is_built_again_and_said_so(tmp_path, caplog, damage):
    open_index(PASSAGES, folder=tmp_path)
    place = the_folder(tmp_path)
    damage(place)
    assert found(open_index(PASSAGES, folder=tmp_path)) == found(build_index(PASSAGES))
    (message,) = told(caplog)
    assert message.startswith(f"the search index {place} is damaged: ") and "it is built again" in message
    assert the_folder(tmp_path) == place
    open_index(PASSAGES, folder=tmp_path)
    assert len(told(caplog)) == 1  # it is sound again


def test_an_index_of_another_version_is_built_again_and_said_so(tmp_path, caplog):
    open_index(PASSAGES, folder=tmp_path)
    path = the_folder(tmp_path) / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "made_by": "steprl search 0, bm25s 0.1"}))
    open_index(PASSAGES, folder=tmp_path)
    (message,) = told(caplog)
    assert "is of another version (steprl search 0, bm25s 0.1; this is steprl search 1, bm25s" in message
    assert json.loads(path.read_text()) == manifest


def test_what_another_process_left_half_done_is_never_read(tmp_path, caplog):
    (tmp_path / ".bm25-abandoned" / "new").mkdir(parents=True)
    (tmp_path / ".bm25-abandoned" / "new" / "manifest.json").write_text("{}")
    assert found(open_index(PASSAGES, folder=tmp_path)) == found(build_index(PASSAGES))
    assert told(caplog) == []


def test_a_process_that_dies_before_it_is_done_leaves_nothing_that_is_read(tmp_path, caplog):
    dying = "import os, pathlib; pathlib.Path.rename = lambda *_: os._exit(9)\n" + BUILD
    died = subprocess.run([sys.executable, "-c", dying, str(tmp_path), "0"], timeout=120)
    assert died.returncode == 9
    assert [name.startswith(".bm25-") for name in kept(tmp_path)] == [True]
    passages = [Passage(f"T{n}", f"word{n} word{n % 7} common") for n in range(2000)]
    index = open_index(passages, folder=tmp_path)
    assert index.search("word3", results=1) == build_index(passages).search("word3", results=1)
    assert told(caplog) == [] and len(kept(tmp_path)) == 2


@pytest.mark.parametrize("damaged", [False, True])
def test_processes_that_build_at_once_all_end_well(tmp_path, damaged):
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    if damaged:
        subprocess.run([*command, "0"], check=True, capture_output=True)
        (the_folder(tmp_path) / "ends.npy").write_bytes(b"torn")
    start = str(time.time() + 2.0)
    running = [
        subprocess.Popen([*command, start], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in running]
    assert [code for *_, code in ended] == [0] * 4, ended
    assert len({out for out, *_ in ended}) == 1 and "memmap" in ended[0][0]
    assert [name.startswith(".") for name in kept(tmp_path)] == [False]
    last = subprocess.run([*command, "0"], capture_output=True, text=True, check=True)
    assert (last.stdout, last.stderr) == (ended[0][0], "")


def test_threads_that_open_at_once_all_end_well(tmp_path):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(found(open_index(PASSAGES, folder=tmp_path))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [found(build_index(PASSAGES))] * 8
    assert len(kept(tmp_path)) == 1


def test_an_open_index_outlives_its_folder(tmp_path):
    import shutil

    index = open_index(PASSAGES, folder=tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    assert found(index) == found(build_index(PASSAGES))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"{tmp_path / 'file'}.* cannot be written: "):
        open_index(PASSAGES, folder=tmp_path / "file")
    with pytest.raises(ConfigError, match="needs passages with words"):
        open_index([], folder=tmp_path)


def test_where_indexes_are_kept(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_folder() == Path("/caches/steprl/search")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder() == Path(os.path.expanduser("~/.cache/steprl/search"))
