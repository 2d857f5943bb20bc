"""The `.bin/.idx` pair: its bytes, what is refused on opening, and that nothing half-written is left."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.facts import missing
from tests.unit.trainer.data.conftest import MakePair
from trainer.data.indexed import IndexedTokens, token_dtype
from trainer.formats.errors import DataError


def test_the_index_of_1000_documents_has_the_known_header_and_size(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[1411, 918, 1046] + [3] * 997)
    raw = Path(f"{prefix}.idx").read_bytes()
    assert len(raw) == 20042
    assert raw[:34].hex() == "4d4d494449445800000100000000000000" + "08" + "e803000000000000" + "e903000000000000"
    assert struct.unpack("<3i", raw[34:46]) == (1411, 918, 1046)
    assert struct.unpack("<3q", raw[4034:4058]) == (0, 2822, 4658)
    assert struct.unpack("<2q", raw[-16:]) == (999, 1000)


@pytest.mark.parametrize(("vocab", "name"), [(65_499, "uint16"), (65_500, "int32"), (250_880, "int32")])
def test_ids_take_16_bits_below_a_vocabulary_of_65500(vocab: int, name: str) -> None:
    assert token_dtype(vocab).name == name


@pytest.mark.usefixtures("engine")
def test_what_was_written_is_read_back(make_pair: MakePair) -> None:
    documents = [[5, 6, 7], [], [250_000], [1, 2]]
    data = IndexedTokens(make_pair("corpus", documents, dtype="<i4"))
    data.check_every_entry()
    assert [data[number].tolist() for number in range(len(data))] == documents
    assert data.part(0, 1, 3).tolist() == [6, 7]
    assert not data.tokens.flags.writeable


def damaged(prefix: str, damage: str) -> None:
    """Do one bad thing to a pair of 4 documents with 2, 3, 4 and 5 tokens of 2 bytes."""
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    raw = bytearray(index.read_bytes())
    match damage:
        case "no idx":
            index.unlink()
        case "no bin":
            data.unlink()
        case "empty idx":
            raw.clear()
        case "half a header":
            del raw[20:]
        case "half an idx":
            del raw[70:]
        case "other magic":
            raw[:9] = b"TNTIDX\0\0\1"
        case "other version":
            raw[9] = 7
        case "other dtype":
            raw[17] = 6
        case "more sequences":
            raw[18] = 5
        case "huge count":
            raw[18:26] = b"\xff" * 8
        case "short bin":
            data.write_bytes(data.read_bytes()[:-2])
        case "long bin":
            data.write_bytes(data.read_bytes() + b"\0\0")
        case "moved pointer":
            raw[34 + 16 + 8] ^= 2
        case "negative length":
            raw[34:38] = struct.pack("<i", -2)
        case "wild document entries":
            raw[-16:-8] = struct.pack("<q", 77)
    if index.exists():
        index.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        ("no idx", ["corpus.idx", "corpus.bin"]),
        ("no bin", ["corpus.bin", "corpus.idx"]),
        ("empty idx", ["0 bytes", "34"]),
        ("half a header", ["20 bytes", "34"]),
        ("half an idx", ["70 bytes", "4 sequences", "5 document entries", "122"]),
        ("other magic", [r"b'TNTIDX\x00\x00\x01'", r"b'MMIDIDX\x00\x00'"]),
        ("other version", ["version 7"]),
        ("other dtype", ["dtype code 6", "1, 2, 3, 4, 5, 8"]),
        ("more sequences", ["122 bytes", "5 sequences", "5 document entries", "134"]),
        ("huge count", ["122 bytes", "18,446,744,073,709,551,615 sequences"]),
        ("short bin", ["corpus.bin", "26 bytes", "corpus.idx", "28"]),
        ("long bin", ["corpus.bin", "30 bytes", "corpus.idx", "28"]),
        ("moved pointer", ["sequence 1", "6", "4"]),
        ("negative length", ["sequence 0", "-2"]),
        ("wild document entries", ["document entries", "0", "4"]),
    ],
)
@pytest.mark.usefixtures("engine")
def test_a_damaged_pair_is_refused_in_one_line_with_file_and_way_out(
    make_pair: MakePair, damage: str, facts: list[str]
) -> None:
    prefix = make_pair("corpus", lengths=[2, 3, 4, 5])
    damaged(prefix, damage)
    with pytest.raises(DataError) as refusal:
        IndexedTokens(prefix).check_every_entry()
    text = str(refusal.value)
    assert not missing(text, prefix, *facts) and "\n" not in text


def test_a_wrong_prefix_names_the_pairs_that_are_there(make_pair: MakePair, tmp_path: Path) -> None:
    make_pair("corpus_text_document", lengths=[3])
    with pytest.raises(DataError, match=r"/corpus\b.*corpus_text_document"):
        IndexedTokens(tmp_path / "corpus")
