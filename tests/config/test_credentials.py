"""Keys and references."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.credentials import TenantKey, check_api_key, check_tenant_key, resolve, tenant_key


@pytest.mark.parametrize("text", ["k", "sk-a.b_c~!", "env:NAME", "env:_n1", "sha256", "k" * 1024])
def test_good_keys(text: str) -> None:
    assert check_api_key(text) == text and check_tenant_key(text) == text


@pytest.mark.parametrize("text", ["", " ", "a b", "a\n", "é", "k" * 1025, "env:", "env:1a", "env:a-b", "env:a b"])
def test_bad_keys(text: str) -> None:
    for check in (check_api_key, check_tenant_key):
        with pytest.raises(ValueError, match=r"is not (a key|env:NAME)"):
            check(text)


@pytest.mark.parametrize("digits", ["", "0" * 63, "0" * 65, "g" * 64])
def test_bad_digest(digits: str) -> None:
    with pytest.raises(ValueError, match="is not sha256:HEX"):
        check_tenant_key(f"sha256:{digits}")


def test_resolve() -> None:
    environ = {"A": " sk-1\n", "EMPTY": " ", "BAD": "CANARY 1", "DIGEST": "sha256:" + "AB" * 32, "HALF": "sha256:AB"}
    assert resolve("plain", environ) == "plain"
    assert resolve("env:A", environ) == "sk-1"
    assert tenant_key("env:A", environ) == TenantKey(sha256(b"sk-1").digest(), short=True)
    assert tenant_key("env:DIGEST", environ) == TenantKey(b"\xab" * 32, short=False)
    for name, text in {"GONE": "GONE is not set or empty", "EMPTY": "EMPTY is not set or empty"}.items():
        with pytest.raises(ValueError, match=text):
            resolve(f"env:{name}", environ)
    with pytest.raises(ValueError, match="BAD holds no key") as caught:
        resolve("env:BAD", environ)
    assert "CANARY" not in str(caught.value)
    with pytest.raises(ValueError, match="is not sha256:HEX"):
        tenant_key("env:HALF", environ)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64))
def test_a_key_and_its_digest_are_the_same_key(key: str) -> None:
    plain = tenant_key("env:K", {"K": f"k{key}"})
    assert plain == TenantKey(sha256(f"k{key}".encode()).digest(), short=len(key) < 15)
    assert tenant_key(f"sha256:{sha256(f'k{key}'.encode()).hexdigest()}", {}).digest == plain.digest
