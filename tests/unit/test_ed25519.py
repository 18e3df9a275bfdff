"""Ed25519: all processes judge a signature alike, also one that libraries disagree about."""

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wakeroll_model import ed25519

P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
ZERO: Point = (0, 1)


def add(one: Point, other: Point) -> Point:
    """Add two points of the curve, as RFC 8032 defines it."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    return (
        (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P,
        (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P,
    )


def times(number: int, point: Point) -> Point:
    found = ZERO
    while number:
        if number & 1:
            found = add(found, point)
        point, number = add(point, point), number >> 1
    return found


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def decoded(text: bytes) -> Point | None:
    """Return the point of an encoding; None if it is none, or not the only one of its point."""
    number = int.from_bytes(text, "little")
    y, sign = number % 2**255, number >> 255
    squared = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(squared, (P + 3) // 8, P)
    if x * x % P != squared:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != squared or y >= P or (x == 0 and sign):
        return None
    return (P - x if x & 1 != sign else x), y


def number_of(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def is_valid(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Judge by the rule that docs/protocol.md has, in whole numbers and without the library."""
    key, s = decoded(public_key), int.from_bytes(signature[32:], "little")
    assert key is not None
    k = number_of(signature[:32], public_key, text) % ORDER
    return s < ORDER and encoded(add(times(s, BASE), times(k, (P - key[0], key[1])))) == signature[:32]


_base = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
assert _base is not None
BASE = _base
_eighth = decoded(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"))
assert _eighth is not None
SMALL = [times(number, _eighth) for number in range(8)]
"""The points of small order."""

PRIVATE = bytes(range(32))
_digest = hashlib.sha512(PRIVATE).digest()
SCALAR = int.from_bytes(_digest[:32], "little") & (2**254 - 8) | 2**254
TEXT = b"a text"


def signature_of(nonce: int, aside: Point, text: bytes, key: Point, lost: int = 0) -> bytes:
    """Sign with a point of small order added to R; `lost` is added to s, in orders of the base point."""
    r = encoded(add(times(nonce, BASE), aside))
    s = (nonce + number_of(r, encoded(key), text) % ORDER * SCALAR) % ORDER + lost * ORDER
    return r + s.to_bytes(32, "little")


def test_the_reference_and_the_library_sign_alike():
    """Else the tests below would compare nothing."""
    nonce = number_of(_digest[32:], TEXT) % ORDER
    key = times(SCALAR, BASE)

    assert encoded(key) == ed25519.public_key_of(PRIVATE)
    assert signature_of(nonce, ZERO, TEXT, key) == ed25519.sign(PRIVATE, TEXT)
    assert times(8, SMALL[1]) == ZERO
    assert len(set(SMALL)) == 8


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, ORDER - 1), st.sampled_from(SMALL), st.sampled_from(SMALL), st.integers(0, 1), st.binary(max_size=20)
)
def test_the_library_judges_by_the_rule_of_the_page(nonce, aside, beside, lost, text):
    """R and the key with a part of small order, and an s that is too large: here libraries disagree."""
    key = add(times(SCALAR, BASE), beside)
    signature = signature_of(nonce, aside, text, key, lost)

    assert ed25519.problem_of(encoded(key)) == ""
    assert ed25519.verifies(encoded(key), signature, text) == is_valid(encoded(key), signature, text)
    if aside == beside == ZERO:
        assert ed25519.verifies(encoded(key), signature, text) == (not lost)


@given(st.integers(0, 511))
def test_a_flipped_bit_is_never_valid(bit):
    signature = bytearray(ed25519.sign(PRIVATE, TEXT))
    signature[bit // 8] ^= 1 << bit % 8

    assert not ed25519.verifies(ed25519.public_key_of(PRIVATE), bytes(signature), TEXT)


@pytest.mark.parametrize("length", [0, 32, 63, 65])
def test_a_signature_of_another_length_is_not_valid(length):
    signature = (ed25519.sign(PRIVATE, TEXT) + b"\0")[:length]

    assert not ed25519.verifies(ed25519.public_key_of(PRIVATE), signature, TEXT)


def test_a_noncanonical_encoding_of_r_is_not_valid():
    """Y = 1 and y = p + 1 are the same point; only one of them is the encoding that the verifier computes."""
    key = times(SCALAR, BASE)
    for y in (1, P + 1):
        r = y.to_bytes(32, "little")
        s = number_of(r, encoded(key), TEXT) % ORDER * SCALAR % ORDER
        signature = r + s.to_bytes(32, "little")
        assert ed25519.verifies(encoded(key), signature, TEXT) == is_valid(encoded(key), signature, TEXT) == (y == 1)


@pytest.mark.parametrize("point", SMALL)
def test_a_key_of_small_order_is_refused(point):
    """By such a key, one signature is valid for many texts: everybody could sign."""
    assert ed25519.problem_of(encoded(point)).startswith("is a point of small order")


@pytest.mark.parametrize(
    ("public_key", "problem"),
    [
        (bytes(31), "has 31 bytes; it must have 32"),
        (b"\x02" + bytes(31), "is not a point of the curve"),
        ((P + 3).to_bytes(32, "little"), "is not a point of the curve"),
        (b"\xff" * 32, "is not a point of the curve"),
    ],
    ids=["short", "no point", "a second encoding", "ones"],
)
def test_what_is_no_public_key_is_refused_whatever_the_library_says(public_key, problem):
    assert ed25519.problem_of(public_key).startswith(problem)


@given(st.binary(min_size=32, max_size=32))
def test_a_public_key_is_the_encoding_of_a_point(text):
    expected = decoded(text)
    assert (ed25519.problem_of(text) == "") == (expected is not None and expected not in SMALL)
    assert ed25519.problem_of(ed25519.public_key_of(text)) == ""


def said(code: str) -> str:
    """Return what a new Python prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_library_is_imported_when_it_is_needed():
    """An application without such keys waits for no import, and needs no package."""
    code = """
import sys, wakeroll, wakeroll.keys
from wakeroll.keys import new_key
new_key("operator")
before = "cryptography" in sys.modules
new_key("operator", algorithm="ed25519")
print(before, "cryptography" in sys.modules)
"""

    assert said(code) == "False True"


def test_without_the_library_one_sentence_says_what_to_install(tmp_path):
    """At the start, not at the first record of somebody else."""
    file = tmp_path / "keys.toml"
    file.write_text(f'[ops]\nrole = "operator"\npublic_key = "{ed25519.public_key_of(PRIVATE).hex()}"\n')
    code = f"""
import sys
sys.modules["cryptography"] = None
from wakeroll.keys import InvalidKeys, new_key, read_keys
for attempt in (lambda: read_keys({str(file)!r}), lambda: new_key("operator", algorithm="ed25519")):
    try:
        attempt()
    except InvalidKeys as error:
        print(error)
"""

    needed = "Ed25519 keys need the extra `ed25519`; install it with: pip install 'wakeroll[ed25519]'"
    assert said(code).splitlines() == [f"the public_key of key 'ops' in {file} cannot be used: {needed}", needed]
