"""Makes tokenizer_gemma3.json: token ids of awkward strings from SentencePiece, the library Gemma's tokenizer was
trained with, fed with the vocabulary of the GGUF file. Our own converter has no part in it.

    python make_tokenizer.py gemma-3-270m-q4_k_m.gguf

Needs: gguf 0.19, sentencepiece 0.2, protobuf. --cross-check compares SentencePiece with the test vectors of llama.cpp
(models/ggml-vocab-gemma-4.gguf.inp and .out, in the source distribution of llama-cpp-python 0.3.36); Gemma 4's
vocabulary is Gemma 3's but for renamed special tokens.

A GGUF file stores the user-defined pieces with real spaces and calls <start_of_turn> and its like control tokens;
Gemma's tokenizer.model has U+2581 in them and calls all but the four below user-defined. Both are put back here.
"""

import argparse
import hashlib
import json
import struct
import sys
from pathlib import Path

import gguf
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm

HERE = Path(__file__).parent
CONTROL, USER_DEFINED = 3, 4
UNKNOWN_ID, TRUE_CONTROL_IDS = 3, (0, 1, 2)  # <unk>; <pad> <eos> <bos>

# Known pairs of text and ids, from llama.cpp's test vectors of this vocabulary.
KNOWN = {
    "Hello world": [9259, 1902],
    " Hello": [26352],
    "\n": [107],
    "   ": [139],
    "\t": [255968],
    "33": [236800, 236800],
}


def long_text(length: int) -> str:
    """`length` ASCII letters and spaces without a newline, by a fixed congruential generator."""
    state, letters, out = 12345, "etaoin shrdlu cmfwypvbgkqjxz ", []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(letters[(state >> 16) % len(letters)])
    return "".join(out)


def cases() -> dict[str, str]:
    texts = {"empty": "", **{f"known {text!r}": text for text in KNOWN}}
    texts |= {f"{n} spaces": " " * n + "X" for n in range(1, 32)}
    texts |= {"33 spaces": " " * 33 + "X", "64 spaces at the end": "X" + " " * 64}
    texts |= {f"{n} newlines between digits": "1" + "\n" * n + "2" for n in range(1, 13)}
    texts |= {"40 newlines": "\n" * 40, "newlines and spaces": "a\n  \n\n   b\n \n"}
    texts |= {
        "six tabs": "\t" * 6 + " x",
        "tabs in code": "if (a) {\n\t\treturn\tb;\n\t}\n",
        "C++": "for (int64_t i = 0; i < n; ++i) {\n    sum += x[i] * 1.5e-3F;  // \u03a3\n}\n",
        "Python": "def f(x: list[int]) -> int:\n    return sum(i**2 for i in x if i % 2 == 0)\n",
        "JSON": '{"a": [1, 2.5, null], "b\\n": "\\u00e9"}',
        "CR LF": "one\r\ntwo\r\n\r\nthree\r",
        "emoji ZWJ": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 "
        "\U0001f44d\U0001f3fd",
        "NFC": "caf\u00e9 \u00c5ngstr\u00f6m",
        "NFD": "cafe\u0301 A\u030angstro\u0308m",
        "Hangul NFC": "\ud55c\uae00",
        "Hangul NFD": "\u1112\u1161\u11ab\u1100\u1173\u11af",
        "controls": "\x00\x01\x07\x1b\x7f\x80\x9f",
        "private use, noncharacters": "\ue000\uf8ff\ufdd0\ufffe\U0010ffff",
        "rare scripts": "\U00013000\U00012000\U0001d11e\u1681\u2d30",
        "Chinese, Japanese": "\u6c34\u5728\u96f6\u5ea6\u7d50\u51b0\u3002\u6614\u3005\u3001\u3042\u308b\u3068\u3053"
        "\u308d\u306b\u3001",
        "Arabic, Hebrew, Thai": "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd "
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
        "German": "Stra\u00dfenbahnhaltestelle, \u00fcbergr\u00f6\u00dfe \u2013 \u201eJa!\u201c",
        "numbers": "3.14159 1,000,000 0x7F 10^-12 \u00bd\u00b2",
        "punctuation": "...!?!?;;---___***(((([[[[{{{{\u2026\u2014\u2014",
        "one long word": "antidisestablishmentarianism" * 20,
        "NBSP and other spaces": "a\u00a0b\u2003c\u3000d\u200be\ufefff",
        "HTML": "<table><tr><td>x</td></tr></table><unknown>",
        "chat markers": "<start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\n",
        "half a marker": "<start_of_turn <end_of_turn>> <start_of_tur n>",
        "literal U+2581": "a\u2581b",  # becomes a space: ids only, no round trip
        "spaces around": "  leading and trailing  ",
    }
    return texts


def sentencepiece_model(
    reader: gguf.GGUFReader,
) -> sentencepiece.SentencePieceProcessor:
    tokens, scores, types = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    model = spm.ModelProto()
    model.trainer_spec.model_type = spm.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.pad_id, model.trainer_spec.eos_id, model.trainer_spec.bos_id = TRUE_CONTROL_IDS
    model.trainer_spec.unk_id = UNKNOWN_ID
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    for i, (token, score, kind) in enumerate(zip(tokens, scores, types, strict=True)):
        if kind == CONTROL and i not in TRUE_CONTROL_IDS:
            kind = USER_DEFINED
        if i == UNKNOWN_ID:
            kind = spm.ModelProto.SentencePiece.UNKNOWN
        if kind == USER_DEFINED:
            token = token.replace(" ", "\u2581")
        model.pieces.add(piece=token, score=score, type=kind)
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def hash_ids(ids: list[int]) -> str:
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()


def cross_check(vectors: Path, processor: sentencepiece.SentencePieceProcessor) -> None:
    texts = vectors.with_suffix(".gguf.inp").read_text().split("\n__ggml_vocab_test__\n")
    expected = vectors.with_suffix(".gguf.out").read_text().splitlines()
    agree = 0
    for text, line in zip(texts, expected, strict=False):
        theirs, ids = [int(i) for i in line.split()], processor.encode(text)
        agree += ids == theirs
        if ids != theirs:
            print(
                f"llama.cpp differs on {text!r}: {theirs}, SentencePiece {ids}",
                file=sys.stderr,
            )
    print(f"llama.cpp's vectors agree on {agree} of {len(expected)} strings")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument(
        "--cross-check",
        type=Path,
        metavar="ggml-vocab-gemma-4.gguf",
        help="path of llama.cpp's vectors",
    )
    args = parser.parse_args()
    processor = sentencepiece_model(gguf.GGUFReader(args.gguf))

    golden = []
    for name, text in cases().items():
        ids = processor.encode(text)
        golden.append(
            {
                "name": name,
                "text": text,
                "ids": ids,
                "round_trip": processor.decode(ids) == text,
            }
        )
    for text, ids in KNOWN.items():
        assert processor.encode(text) == ids, (text, processor.encode(text), ids)
    if args.cross_check:
        cross_check(args.cross_check, processor)

    length = 2**20
    ids = processor.encode(long_text(length))
    data = {
        "gguf_sha256": hashlib.sha256(args.gguf.read_bytes()).hexdigest(),
        "reference": f"sentencepiece {sentencepiece.__version__}",
        "cases": golden,
        "long": {
            "length": length,
            "num_ids": len(ids),
            "ids_sha256": hash_ids(ids),
            "first_ids": ids[:32],
        },
    }
    (HERE / "tokenizer_gemma3.json").write_text(json.dumps(data, indent=0) + "\n")


if __name__ == "__main__":
    main()
