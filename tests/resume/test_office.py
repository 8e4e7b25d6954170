"""Who may come back with a token: the same key, the same request, the same text, in time, once."""

import json
from collections.abc import Callable

import pytest
from resume.before_office import BODY, NEW, Node, asking, token_of

from forebay.errors import Refused
from forebay.wire.resumed import Asking

KEY = b"0123456789abcdef" * 2
NEXT = b"fedcba9876543210" * 2


def refusal(act: Callable[[], object]) -> str:
    """The code of the refusal; every one of them says what to do."""
    with pytest.raises(Refused) as caught:
        act()
    assert "send the request anew" in caught.value.message
    return caught.value.code


def test_another_node_with_the_same_key_takes_it() -> None:
    token = token_of(Node(KEY).stamp(), "Hé", " wörld")
    shown = Node(KEY, own=b"another").office.open(token, asking(), "Hé wörld")
    assert (shown.text, shown.tokens) == ("Hé wörld", 2)


def test_a_node_of_its_own_takes_its_own() -> None:
    token = token_of(Node().stamp(), "hi")
    assert Node().office.open(token, asking(), "hi").text == "hi"
    assert refusal(lambda: Node(own=b"another").office.open(token, asking(), "hi")) == "resume_invalid"


def test_keys_are_changed_without_a_gap() -> None:
    node = Node(KEY)
    before = token_of(node.stamp(), "hi")
    node.follow(NEXT, KEY)
    assert node.office.open(before, asking(), "hi").text == "hi"
    after = token_of(node.stamp(), "hi")
    node.follow(NEXT)
    assert node.office.open(after, asking(), "hi").text == "hi"
    assert refusal(lambda: node.office.open(before, asking(), "hi")) == "resume_invalid"


STRANGERS: dict[str, tuple[Asking, str]] = {
    "tenant": (asking(tenant="b"), "resume_invalid"),
    "key": (asking(key=b"K" * 32), "resume_invalid"),
    "endpoint": (asking(endpoint="completions"), "resume_mismatch"),
    "body": (asking(BODY | {"temperature": 1}), "resume_mismatch"),
    "value": (asking(BODY | {"messages": [{"role": "user", "content": "ho"}]}), "resume_mismatch"),
    "missing": (asking({"model": "m", "stream": True}), "resume_mismatch"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_are_refused(stranger: str) -> None:
    node = Node()
    token = token_of(node.stamp(), "hi")
    other, code = STRANGERS[stranger]
    assert refusal(lambda: node.office.open(token, other, "hi")) == code


def test_the_order_of_members_and_the_space_between_them_mean_nothing() -> None:
    node = Node()
    token = token_of(node.stamp(), "hi")
    spaced = b"{ " + b" , ".join(b'"%b" :%b' % (k.encode(), json.dumps(v).encode()) for k, v in BODY.items()) + b"}"
    for body in (dict(reversed(BODY.items())), spaced):
        assert node.office.open(token, asking(body), "hi").text == "hi"


@pytest.mark.parametrize("text", ["", "h", "hi!", "Hi", "hi ", "h\u0131"])
def test_another_text_is_refused(text: str) -> None:
    node = Node()
    token = token_of(node.stamp(), "hi")
    assert refusal(lambda: node.office.open(token, asking(), text)) == "resume_mismatch"


def test_the_text_of_a_later_event_is_refused() -> None:
    node = Node()
    stamp = node.stamp()
    early = token_of(stamp, "one")
    token_of(stamp, "one", " two")
    assert refusal(lambda: node.office.open(early, asking(), "one two")) == "resume_mismatch"


def test_it_expires() -> None:
    node = Node(ttl_s=30)
    token = token_of(node.stamp(), "hi")
    node.now_s += 29.5
    assert node.office.open(token, asking(), "hi")
    node.now_s += 1
    assert refusal(lambda: node.office.open(token, asking(), "hi")) == "resume_expired"


@pytest.mark.parametrize(("ahead_s", "taken"), [(50, True), (-3600, False), (3600, False)])
def test_clocks_that_differ(ahead_s: float, taken: bool) -> None:
    one, other = Node(KEY), Node(KEY)
    one.now_s += ahead_s
    token = token_of(one.stamp(), "hi")
    if taken:
        assert other.office.open(token, asking(), "hi")
    else:
        assert refusal(lambda: other.office.open(token, asking(), "hi")) == "resume_expired"


def test_a_token_is_used_once_with_all_of_its_leg() -> None:
    node, other = Node(KEY), Node(KEY)
    stamp = node.stamp()
    early, late = token_of(stamp, "one"), token_of(stamp, " two")
    text = {early: "one", late: "one two"}
    shown, rival = (node.office.open(early, asking(), text[early]) for _ in range(2))
    node.office.take(shown)
    assert refusal(lambda: node.office.take(rival)) == "resume_used"
    for token in (early, late):
        assert refusal(lambda token=token: node.office.open(token, asking(), text[token])) == "resume_used"  # type: ignore[misc]
        assert other.office.open(token, asking(), text[token]), "each node knows its own"
    again = node.stamp(shown)
    assert node.office.open(token_of(again, " three"), asking(), "one three"), "a new leg may be resumed"


@pytest.mark.parametrize("token", [b"", b"1", b"x" * 400, b"\xff" * 30, b"AAAA"])
def test_what_is_no_token(token: bytes) -> None:
    assert refusal(lambda: Node().office.open(token, asking(), "hi")) == "resume_invalid"


def test_a_new_answer_of_nothing_has_no_token() -> None:
    assert Node().stamp(NEW).given == 0
