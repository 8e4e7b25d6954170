"""Sealing: what was sealed comes back, and nothing else opens."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.resume import keyring
from forebay.resume.keyring import MAX_TOKEN_BYTES, Key, Keyring, NotOurs, Seal, TooLarge, equal

SECRET = b"0123456789abcdef" * 2
OTHER = b"fedcba9876543210" * 2


def opens(ring: Keyring, token: bytes) -> bool:
    try:
        ring.open(token)
    except NotOurs:
        return False
    return True


@given(st.binary(max_size=600))
def test_what_was_sealed_comes_back(message: bytes) -> None:
    ring = Keyring([SECRET])
    seal = Seal(ring.first)
    for _ in range(3):
        key, leg, opened = ring.open(seal.seal(message))
        assert (key is ring.first, leg, opened) == (True, seal.leg, message)


def test_a_token_says_nothing_and_none_is_like_another() -> None:
    seal = Seal(Key(SECRET))
    tokens = {seal.seal(b"a secret of the client") for _ in range(100)} | {Seal(Key(SECRET)).seal(b"x")}
    assert len(tokens) == 101
    sealed = urlsafe_b64decode(max(tokens, key=len) + b"==")
    assert b"secret" not in sealed and SECRET[:16] not in sealed


def test_every_changed_byte_is_noticed() -> None:
    ring = Keyring([SECRET])
    token = Seal(ring.first).seal(b"message")
    for place in range(len(token)):
        for other in b"A_z9~ \n=":
            changed = token[:place] + bytes([other]) + token[place + 1 :]
            assert changed == token or not opens(ring, changed), place
        assert not opens(ring, token[:place])
        assert not opens(ring, token[:place] + token[place + 1 :])
    assert opens(ring, token)


def test_every_changed_bit_is_noticed() -> None:
    ring = Keyring([SECRET])
    sealed = urlsafe_b64decode(Seal(ring.first).seal(b"message") + b"==")
    for place in range(len(sealed)):
        for bit in range(8):
            changed = sealed[:place] + bytes([sealed[place] ^ 1 << bit]) + sealed[place + 1 :]
            assert not opens(ring, urlsafe_b64encode(changed).rstrip(b"=")), (place, bit)


@given(st.binary(max_size=MAX_TOKEN_BYTES + 10))
def test_anything_else_is_not_ours(token: bytes) -> None:
    assert not opens(Keyring([SECRET]), token)


def test_keys_are_changed_without_a_gap() -> None:
    old, both, new = Keyring([OTHER]), Keyring([SECRET, OTHER]), Keyring([SECRET])
    before, after = Seal(old.first).seal(b"old"), Seal(both.first).seal(b"new")
    assert both.open(before)[2] == b"old" and both.open(after)[2] == b"new"
    assert opens(new, after) and not opens(new, before) and not opens(old, after)


def test_a_key_of_the_same_id_may_be_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four bytes tell keys apart; where they do not, the right one is found all the same."""
    derived = keyring._derived

    def same_ids(secret: bytes, salt: bytes | None, purpose: bytes, length_bytes: int = 32) -> bytes:
        return b"same" if purpose == b"id" else derived(secret, salt, purpose, length_bytes)

    monkeypatch.setattr(keyring, "_derived", same_ids)
    ring = Keyring([OTHER, SECRET])
    for key in ring._keys:
        assert ring.open(Seal(key).seal(b"mine"))[0] is key


def test_a_token_fits_into_its_bound() -> None:
    seal = Seal(Key(SECRET))
    # 25 bytes of head and 16 of tag, four characters for three bytes.
    longest = MAX_TOKEN_BYTES * 3 // 4 - 41
    assert len(seal.seal(b"x" * longest)) == MAX_TOKEN_BYTES
    with pytest.raises(TooLarge):
        seal.seal(b"x" * (longest + 1))


def test_a_leg_does_not_count_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_NUMBER", 2)
    seal = Seal(Key(SECRET))
    assert seal.seal(b"x") != seal.seal(b"x")
    with pytest.raises(TooLarge):
        seal.seal(b"x")


def test_hashes_belong_to_their_key_and_to_how_their_parts_are_cut() -> None:
    key = Key(SECRET)
    assert equal(key.mac(b"ab", b"c"), Key(SECRET).mac(b"ab", b"c"))
    assert len({key.mac(b"ab", b"c"), key.mac(b"a", b"bc"), key.mac(b"abc"), Key(OTHER).mac(b"ab", b"c")}) == 4


@given(st.lists(st.text(max_size=20), max_size=20))
def test_a_hash_of_pieces_is_the_hash_of_the_whole(pieces: list[str]) -> None:
    rolling = Key(SECRET).hasher()
    whole = Key(SECRET).hasher()
    for piece in pieces:
        rolling.update(piece.encode(errors="surrogatepass"))
        rolling.copy().digest()
    whole.update("".join(pieces).encode(errors="surrogatepass"))
    assert rolling.digest() == whole.digest()
